"""METEOR 1.5, through the Java program that pycocoevalcap ships."""

from collections.abc import Sequence
from pathlib import Path

from captioning.metrics.java import java_process

# Generous: it loads its paraphrases in seconds, and takes some milliseconds a caption.
_SECONDS_TO_START = 120.0
_SECONDS_A_CAPTION = 0.1


def meteor_scores(
    captions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[float, list[float]]:
    """Return METEOR of the whole set, and of each caption.

    captions: N tokenised captions; references: N lists of them. Raises JavaError. The set's score
    comes from the summed statistics and is not the mean (Denkowski & Lavie 2014).
    """
    from pycocoevalcap.meteor import meteor

    jar = Path(meteor.__file__).with_name(meteor.METEOR_JAR)
    options = ["-", "-", "-stdio", "-l", "en", "-norm"]
    time_limit = _SECONDS_TO_START + _SECONDS_A_CAPTION * len(captions)
    with java_process(["-Xmx2G", "-jar", jar, *options], time_limit) as (process, _):

        def tell(*fields):
            process.stdin.write(" ||| ".join(fields) + "\n")
            process.stdin.flush()

        def hear():
            return process.stdout.readline().strip()

        statistics = []
        for caption, group in zip(captions, references):
            tell("SCORE", *group, caption)
            statistics.append(hear())
        tell("EVAL", *statistics)
        each = [float(hear()) for _ in captions]
        return float(hear()), each
