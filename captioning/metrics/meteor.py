"""Computes METEOR 1.5 (Denkowski & Lavie 2014) with the Java program in pycocoevalcap.

The program counts matches. The formula is computed here, because confidence intervals need it for
the sums of many resamples.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Listener
from tempfile import TemporaryDirectory
from threading import Thread

import numpy as np

from captioning.metrics.base import Scores
from captioning.metrics.intervals import estimates
from captioning.metrics.java import JavaError, end_java, jar, run_java, start_java

# METEOR's parameters for English. _WEIGHTS: those of exact, stem, synonym and paraphrase matches.
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])

# Java's other garbage collectors need 20 % more CPU time and twice the memory.
_JAVA = ("-XX:+UseSerialGC", "-Xmx2G", "-jar")
_PROGRAM = ("-", "-", "-stdio", "-l", "en", "-norm")
# The environment variable with the path of the socket of `shared_process`.
ADDRESS_VARIABLE = "CAPTIONING_METEOR"


def meteor_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return METEOR of the whole set, which is computed from sums, and of each caption.

    captions: N tokenised captions; references: N lists of tokenised captions. Raises JavaError.
    """
    counts = count_matches(captions, references)
    [estimate] = estimates(counts, lambda sums: meteor_of_sums(sums)[:, None])
    return Scores({"METEOR": estimate}, {"METEOR": meteor_of_sums(counts).tolist()})


def count_matches(captions: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """Return METEOR's counts (N, 23) of N captions, see `meteor_of_sums`. Raises JavaError."""
    groups = zip(captions, references)
    text = "".join(" ||| ".join(["SCORE", *group, caption]) + "\n" for caption, group in groups)
    # The program loads its tables in seconds, and takes milliseconds per caption.
    seconds = 120 + 0.1 * len(captions)
    lines = _ask_shared(text, seconds) if ADDRESS_VARIABLE in os.environ else []
    if len(lines) != len(captions):
        lines = run_java(*_command(), text=text, seconds=seconds)[0].splitlines()
    try:
        counts = np.array([list(map(float, line.split())) for line in lines])
        counts = counts.reshape(len(captions), 23)
    except ValueError as error:
        raise JavaError(f"Java's answer is invalid: {error}") from None
    # A caption that equals its reference has no chunk.
    equal = (counts[:, 21:] == counts[:, :2]).all(1) & (counts[:, 20] == 1)
    counts[equal, 20] = 0
    return counts


def meteor_of_sums(sums: np.ndarray) -> np.ndarray:
    """Return METEOR (R,) of R rows of summed counts.

    sums: (R, 23). Numbers of words have two columns: of the captions, then of the references.

    - all words (2 columns), function words (2)
    - for each kind of match (exact, stem, synonym, paraphrase): matched content words (2), matched
      function words (2)
    - chunks (1)
    - all matched words (2)
    """
    lengths, functions = sums[:, :2], sums[:, 2:4]
    matched = np.einsum("rms,m->rs", sums[:, 4:20].reshape(-1, 4, 4), _WEIGHTS)  # (R, 4)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision, recall = (
            (_DELTA * matched[:, :2] + (1 - _DELTA) * matched[:, 2:])
            / (_DELTA * (lengths - functions) + (1 - _DELTA) * functions)
        ).T
        harmonic = precision * recall / (_ALPHA * precision + (1 - _ALPHA) * recall)
        fragmentation = sums[:, 20] / sums[:, 21:].mean(1)
        return np.nan_to_num(harmonic * (1 - _GAMMA * fragmentation**_BETA))


@contextmanager
def shared_process(start: bool = False) -> Iterator[None]:
    """Let this process and those that it starts in the block share one Java program.

    Starting it takes six seconds of CPU time, and it needs 600 MB. If it fails, each caller starts
    its own. start: whether to start it at once instead of with the first captions.
    """
    programs = []
    # Only this user can enter a temporary folder.
    with TemporaryDirectory() as folder, Listener(f"{folder}/meteor") as listener:
        if start:
            with suppress(JavaError):
                programs.append(_start())
        server = Thread(target=_serve, args=(listener, programs), daemon=True)
        server.start()
        os.environ[ADDRESS_VARIABLE] = listener.address
        try:
            yield
        finally:
            Client(os.environ.pop(ADDRESS_VARIABLE)).send("")
            for program in programs:
                end_java(program)
            server.join()


def _serve(listener: Listener, programs: list[subprocess.Popen]) -> None:
    """Answer one process at a time until an empty text arrives. The last of `programs` is used."""
    while True:
        with suppress(OSError, EOFError, JavaError), listener.accept() as connection:
            lines = connection.recv().splitlines(keepends=True)
            if not lines:
                return
            if not programs or programs[-1].poll() is not None:
                programs.append(_start())
            java, answers = programs[-1], []
            for line in lines:
                java.stdin.write(line)
                java.stdin.flush()
                answers.append(java.stdout.readline())
            connection.send("".join(answers))


def _ask_shared(text: str, seconds: float) -> list[str]:
    """Return the lines of the shared program; too few if it fails."""
    with suppress(OSError, EOFError), Client(os.environ[ADDRESS_VARIABLE]) as connection:
        connection.send(text)
        if connection.poll(seconds):
            return connection.recv().splitlines()
    return []


def _start() -> subprocess.Popen:
    return start_java(*_command(), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _command() -> tuple[str, ...]:
    return (*_JAVA, jar("meteor/meteor-1.5.jar"), *_PROGRAM)
