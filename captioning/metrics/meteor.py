"""Computes METEOR 1.5 with the Java program in pycocoevalcap."""

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socketserver import StreamRequestHandler, UnixStreamServer
from tempfile import TemporaryDirectory
from threading import Thread

import numpy as np

from captioning.metrics.bootstrap import Estimate, bootstrap_intervals
from captioning.metrics.evaluator import Scores
from captioning.metrics.java import JavaError, java_process

# Time limits. They are generous: the Java program loads its table of paraphrases in seconds, and
# takes milliseconds per caption.
_SECONDS_TO_START = 120.0
_SECONDS_PER_CAPTION = 0.1

# METEOR's parameters for English. _WEIGHTS: those of exact, stem, synonym and paraphrase matches.
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])

_SHARED_SECONDS = 3600.0  # time limit of the Java process in `shared_process`
# The environment variable with the path of the shared process's socket.
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


class _SharedJava(UnixStreamServer):
    """Answers requests for scores, one at a time, with one Java process."""

    request_queue_size = 128

    def __init__(self, address: str):
        super().__init__(address, _Request)
        self.stack, self.process = ExitStack(), None

    def start(self) -> None:
        """Start Java if it does not run. Raises JavaError."""
        if self.process is None or self.process.poll() is not None:
            self.close_java()
            self.process, _ = self.stack.enter_context(_start_meteor(_SHARED_SECONDS))

    def score(self, captions, references):
        with self.stack:  # ends Java if the call fails
            self.start()
            result = _score_with(self.process, captions, references)
            self.stack = self.stack.pop_all()
        return result

    def close_java(self) -> None:
        with suppress(JavaError):
            self.stack.close()

    def handle_error(self, request, client_address) -> None:
        """Called when a request has failed. It gets no reply, so that the client notices."""


class _Request(StreamRequestHandler):
    def handle(self) -> None:
        total, each, statistics = self.server.score(*json.loads(self.rfile.readline()))
        self.wfile.write(json.dumps([total, each, statistics.tolist()]).encode())


@contextmanager
def shared_process(start: bool = False) -> Iterator[None]:
    """Let all calls of `meteor_scores` in the block share one Java process.

    Starting Java takes nine seconds of CPU time. Processes that are started in the block share it,
    too. start: whether to start Java at once, not at the first call. Java needs about 600 MB, and
    is killed after an hour. If it fails during a call, the caller starts its own, and the next call
    starts a new shared process.
    """
    outer = os.environ.get(ADDRESS)
    # Only this user can enter a temporary folder.
    with TemporaryDirectory() as folder, _SharedJava(f"{folder}/meteor") as java:
        os.environ[ADDRESS] = java.server_address
        if start:
            with suppress(JavaError):
                java.start()
        Thread(target=java.serve_forever, args=(0.1,), daemon=True).start()
        try:
            yield
        finally:
            java.shutdown()
            java.close_java()
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
        with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as client:
            client.connect(os.environ[ADDRESS])
            client.sendall(json.dumps([captions, references]).encode() + b"\n")
            total, each, statistics = json.loads(client.makefile().read())
            return total, each, np.array(statistics)
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
