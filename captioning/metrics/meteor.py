"""Computes METEOR 1.5 with the Java program in pycocoevalcap."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import RLock

import numpy as np

from captioning.metrics.bootstrap import Estimate, bootstrap_intervals
from captioning.metrics.evaluator import Scores
from captioning.metrics.java import JavaError, java_process
from captioning.runtime.rpc import CallFailed, call, serve

# Time limits. They are generous: the Java program loads its table of paraphrases in seconds, and
# takes milliseconds per caption.
_SECONDS_TO_START = 120.0
_SECONDS_PER_CAPTION = 0.1

# METEOR's parameters for English. _WEIGHTS: those of exact, stem, synonym and paraphrase matches.
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])

_SHARED_SECONDS = 3600.0  # time limit of the Java process in `shared_process`
# The environment variable with the address at which other processes call the shared process.
ADDRESS = "CAPTIONING_METEOR"

_LENGTHS, _CHUNKS, _WORDS = slice(0, 2), 20, slice(21, 23)  # columns, see `meteor_of_sums`


def meteor_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return METEOR of the whole set, and of each caption.

    captions: N tokenised captions; references: N lists of tokenised captions. The set's score and
    its interval are computed from statistics summed over captions, so the score is not the mean
    over captions (Denkowski & Lavie 2014). Raises JavaError.
    """
    total, each, statistics = _run_meteor(captions, references)
    [(low, high)] = bootstrap_intervals(statistics, lambda sums: meteor_of_sums(sums)[:, None])
    estimate = Estimate(total, low, high, len(captions))
    return Scores({"METEOR": estimate}, {"METEOR": each})


def meteor_of_sums(sums: np.ndarray) -> np.ndarray:
    """Return METEOR (R,) of R rows of summed statistics.

    sums: (R, 23), in the order of the Java program. Numbers of words have two columns: of the
    captions, then of the references.

    - all words (2 columns), function words (2)
    - for each kind of match (exact, stem, synonym, paraphrase): matched content words (2), matched
      function words (2)
    - chunks (1); a caption that equals its reference adds no chunk
    - all matched words (2)
    """
    lengths, functions = sums[:, _LENGTHS], sums[:, 2:4]
    matched = np.einsum("rms,m->rs", sums[:, 4:20].reshape(-1, 4, 4), _WEIGHTS)  # (R, 4)
    chunks, words = sums[:, _CHUNKS], sums[:, _WORDS]
    with np.errstate(divide="ignore", invalid="ignore"):
        precision, recall = (
            (_DELTA * matched[:, :2] + (1 - _DELTA) * matched[:, 2:])
            / (_DELTA * (lengths - functions) + (1 - _DELTA) * functions)
        ).T
        harmonic = precision * recall / (_ALPHA * precision + (1 - _ALPHA) * recall)
        fragmentation = chunks / words.mean(1)
        return np.nan_to_num(harmonic * (1 - _GAMMA * fragmentation**_BETA))


class _SharedJava:
    """The Java process of a `shared_process` block. The first call of `score` starts it."""

    def __init__(self):
        self.stack, self.process, self.lock = ExitStack(), None, RLock()

    def start(self):
        """Return the running process. Start a process if there is none, or if it has ended."""
        with self.lock:
            if self.process is not None and self.process.poll() is not None:
                self.close()
            if self.process is None:
                self.process, _ = self.stack.enter_context(_start_meteor(_SHARED_SECONDS))
            return self.process

    def score(self, captions, references):
        """Call `_score_with` with the process, and return the result. Threads take turns.

        An error ends the process. Raises JavaError.
        """
        with self.lock:
            process, self.process = self.start(), None
            with self.stack:  # ends the process and raises JavaError if the call fails
                answer = _score_with(process, captions, references)
                self.stack, self.process = self.stack.pop_all(), process
            return answer

    def close(self):
        with self.lock, suppress(JavaError):  # nobody needs the process any more
            self.stack.close()
        self.process = None


@contextmanager
def shared_process(start: bool = False) -> Iterator[Mapping[str, str]]:
    """Let all calls of `meteor_scores` in the block share one Java process.

    Starting Java takes seconds. Yields environment variables with which processes that are started
    by multiprocessing use the shared process, too. start: whether to start Java at once, not at the
    first call. The process needs about 600 MB, and is killed after an hour. If it fails during a
    call, the call is repeated with a separate process, and the next call starts a new shared
    process.
    """
    java, outer = _SharedJava(), os.environ.get(ADDRESS)
    with serve(java.score) as os.environ[ADDRESS]:
        try:
            if start:
                with suppress(JavaError):
                    java.start()
            yield {ADDRESS: os.environ[ADDRESS]}
        finally:
            java.close()
            if outer is None:
                del os.environ[ADDRESS]
            else:
                os.environ[ADDRESS] = outer


def _start_meteor(time_limit: float):
    from pycocoevalcap.meteor import meteor

    jar = Path(meteor.__file__).with_name(meteor.METEOR_JAR)
    # Java's other garbage collectors need 20 % more CPU time and twice the memory.
    java_options = ["-XX:+UseSerialGC", "-Xmx2G", "-jar", jar]
    return java_process([*java_options, "-", "-", "-stdio", "-l", "en", "-norm"], time_limit)


def _run_meteor(captions, references):
    """Return the score of the set, the scores of the captions, and the captions' statistics.

    The statistics are (N, 23), see `meteor_of_sums`. Raises JavaError.
    """
    time_limit = _SECONDS_TO_START + _SECONDS_PER_CAPTION * len(captions)
    if ADDRESS in os.environ:
        with suppress(CallFailed):
            return call(os.environ[ADDRESS], time_limit, captions, references)
    with _start_meteor(time_limit) as (process, _):
        return _score_with(process, captions, references)


def _score_with(process, captions, references):
    """Return the same as `_run_meteor`, computed by a running process."""

    def send(*fields):
        process.stdin.write(" ||| ".join(fields) + "\n")
        process.stdin.flush()

    def receive():
        return process.stdout.readline().strip()

    lines = []
    for caption, group in zip(captions, references):
        send("SCORE", *group, caption)
        lines.append(receive())
    send("EVAL", *lines)
    each = [float(receive()) for _ in captions]
    statistics = np.array([[float(number) for number in line.split()] for line in lines])
    same = (statistics[:, _WORDS] == statistics[:, _LENGTHS]).all(1)
    statistics[same & (statistics[:, _CHUNKS] == 1), _CHUNKS] = 0
    return float(receive()), each, statistics
