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


class _Shared:
    """The one process of a `shared_process` block, started when it is first asked for."""

    def __init__(self):
        self.opened, self.process = ExitStack(), None
        self.owner, self.lock = os.getpid(), RLock()

    def is_own(self):
        """Whether it is this process's: one that was forked cannot share its parent's pipes."""
        return self.owner == os.getpid()

    def start(self):
        """The process, another one where it has failed or was ended in between."""
        with self.lock:
            if self.process is not None and self.process.poll() is not None:
                self.close()
            if self.process is None:
                self.process, _ = self.opened.enter_context(_java(_SHARED_SECONDS))
            return self.process

    def score(self, captions, references):
        """As `_converse`, one call at a time; a process that fails is given up."""
        with self.lock:
            process, self.process = self.start(), None
            with self.opened:  # which ends the process, and tells Java's own reason, if this fails
                answer = _converse(process, captions, references)
                self.opened, self.process = self.opened.pop_all(), process
            return answer

    def close(self):
        with self.lock, suppress(JavaError):  # what it failed to score has been reported
            self.opened.close()
        self.process = None


_shared: Optional[_Shared] = None


@contextmanager
def shared_process() -> Iterator[None]:
    """Let all scores within the block come from one Java process: each takes seconds to start.

    It holds about 600 MB, and is given up after an hour.
    """
    global _shared
    outer, _shared = _shared, _Shared()
    try:
        yield
    finally:
        _shared.close()
        _shared = outer


@contextmanager
def scoring_for_jobs() -> Iterator[Mapping[str, str]]:
    """`shared_process`, begun at once, for this process and for jobs with the environment given."""
    with shared_process(), serve(_shared.score) as address:
        with suppress(JavaError):  # who scores is told
            _shared.start()
        yield {ADDRESS: address}


def _java(time_limit: float):
    from pycocoevalcap.meteor import meteor

    jar = Path(meteor.__file__).with_name(meteor.METEOR_JAR)
    # Others of Java's collectors use a fifth more of the cores, and twice the memory.
    machine = ["-XX:+UseSerialGC", "-Xmx2G", "-jar", jar]
    return java_process([*machine, "-", "-", "-stdio", "-l", "en", "-norm"], time_limit)


def _run_java(captions, references):
    """Return the set's score, each caption's, and (N, 23) statistics."""
    if _shared is not None and _shared.is_own():
        return _shared.score(captions, references)
    time_limit = _SECONDS_TO_START + _SECONDS_A_CAPTION * len(captions)
    if ADDRESS in os.environ:
        with suppress(CallFailed):
            return call(os.environ[ADDRESS], time_limit, captions, references)
    with _java(time_limit) as (process, _):
        return _converse(process, captions, references)


def _converse(process, captions, references):
    def tell(*fields):
        process.stdin.write(" ||| ".join(fields) + "\n")
        process.stdin.flush()

    def hear():
        return process.stdout.readline().strip()

    lines = []
    for caption, group in zip(captions, references):
        tell("SCORE", *group, caption)
        lines.append(hear())
    tell("EVAL", *lines)
    each = [float(hear()) for _ in captions]
    statistics = np.array([[float(number) for number in line.split()] for line in lines])
    same = (statistics[:, _WORDS] == statistics[:, _LENGTHS]).all(1)
    statistics[same & (statistics[:, _CHUNKS] == 1), _CHUNKS] = 0
    return float(hear()), each, statistics
