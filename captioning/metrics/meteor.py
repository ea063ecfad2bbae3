"""METEOR 1.5, through the Java program that pycocoevalcap ships."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Optional

import numpy as np

from captioning.metrics.bootstrap import Estimate, intervals
from captioning.metrics.java import JavaError, java_process
from captioning.runtime.rpc import CallFailed, call, serve

# It loads its paraphrases in seconds, and takes some milliseconds a caption.
_SECONDS_TO_START = 120.0
_SECONDS_A_CAPTION = 0.1

# The parameters for English, and the weights of exact, stem, synonym and paraphrase matches.
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])

_SHARED_SECONDS = 3600.0
# The environment variable with the address of the process that scores for this one.
ADDRESS = "CAPTIONING_METEOR"

_LENGTHS, _CHUNKS, _WORDS = slice(0, 2), 20, slice(21, 23)  # indices into the statistics


def meteor_scores(
    captions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[Estimate, list[float]]:
    """Return METEOR of the whole set, and of each caption.

    captions: N tokenised captions; references: N lists of them. Raises JavaError. The set's score
    and its interval come from summed statistics; it is not the mean (Denkowski & Lavie 2014).
    """
    total, each, statistics = _run_java(captions, references)
    [bounds] = intervals(statistics, lambda sums: meteor_of_sums(sums)[:, None])
    return Estimate(total, *bounds, len(captions)), each


def meteor_of_sums(sums: np.ndarray) -> np.ndarray:
    """Return (R,), METEOR of R sums of the statistics that the program prints.

    sums: (R, 23): words of captions and of references, function words of both; for each of four
    kinds of matches: content words matched of captions and of references, function words likewise;
    chunks, all words matched of captions and of references. A caption that equals its reference
    adds no chunk.
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
    """The Java process of a `shared_process` block, started by the first use."""

    def __init__(self):
        self.opened, self.process = ExitStack(), None
        self.owner, self.lock = os.getpid(), RLock()

    def start(self):
        """The running process; replaces one that failed or was killed."""
        with self.lock:
            if self.process is not None and self.process.poll() is not None:
                self.close()
            if self.process is None:
                self.process, _ = self.opened.enter_context(_java(_SHARED_SECONDS))
            return self.process

    def score(self, captions, references):
        """`_score` in the shared process, one call at a time; ends the process if it fails."""
        with self.lock:
            process, self.process = self.start(), None
            with self.opened:  # raises Java's own error if the call fails
                answer = _score(process, captions, references)
                self.opened, self.process = self.opened.pop_all(), process
            return answer

    def close(self):
        with self.lock, suppress(JavaError):  # the failed call has reported it
            self.opened.close()
        self.process = None


_shared: Optional[_SharedJava] = None


@contextmanager
def shared_process() -> Iterator[None]:
    """Compute all scores of the block in one Java process, as each takes seconds to start.

    It needs about 600 MB, and is killed after an hour.
    """
    global _shared
    outer, _shared = _shared, _SharedJava()
    try:
        yield
    finally:
        _shared.close()
        _shared = outer


@contextmanager
def scoring_for_jobs() -> Iterator[Mapping[str, str]]:
    """`shared_process`, started at once, also for jobs with the environment that is yielded."""
    with shared_process(), serve(_shared.score) as address:
        with suppress(JavaError):  # every score reports it
            _shared.start()
        yield {ADDRESS: address}


def _java(time_limit: float):
    from pycocoevalcap.meteor import meteor

    jar = Path(meteor.__file__).with_name(meteor.METEOR_JAR)
    # Java's other collectors use a fifth more of the cores, and twice the memory.
    machine = ["-XX:+UseSerialGC", "-Xmx2G", "-jar", jar]
    return java_process([*machine, "-", "-", "-stdio", "-l", "en", "-norm"], time_limit)


def _run_java(captions, references):
    """Return the set's score, each caption's, and (N, 23) statistics."""
    # A forked process cannot use its parent's pipes.
    if _shared is not None and _shared.owner == os.getpid():
        return _shared.score(captions, references)
    time_limit = _SECONDS_TO_START + _SECONDS_A_CAPTION * len(captions)
    if ADDRESS in os.environ:
        with suppress(CallFailed):
            return call(os.environ[ADDRESS], time_limit, captions, references)
    with _java(time_limit) as (process, _):
        return _score(process, captions, references)


def _score(process, captions, references):
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
