"""Runs a Java program that communicates through pipes, with a time limit."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from captioning.runtime import signals

_VERSION_SECONDS = 10.0
_ERROR_LINE = re.compile(r"Exception in|Error|[\w.]+(Error|Exception)\b")


class JavaError(Exception):
    """A Java program gave no result. The text says why, in one line."""


def java_version() -> int:
    """Return the major version (8, 17, ...) of the `java` on PATH. Raises JavaError."""
    with java_process(["-version"], _VERSION_SECONDS) as (process, log):
        process.communicate()
        log.seek(0)
        # Java 8 prints "1.8.0"; later versions print, for example, "9.0.1".
        found = re.search(r'version "(?:1\.)?(\d+)', log.read())
    if not found:
        raise JavaError("`java -version` prints no version")
    return int(found.group(1))


@contextlib.contextmanager
def java_process(
    arguments: Sequence, time_limit: float
) -> Iterator[tuple[subprocess.Popen, TextIO]]:
    """Start `java ARGUMENTS`. Yield the process, with UTF-8 pipes, and a file with its stderr.

    At the end of the block, wait until the program ends. The program is killed after `time_limit`
    seconds, or when this process is asked to stop. Raises JavaError if the program does not
    start, fails or is killed. An OSError or ValueError in the block, such as a broken pipe or
    output that is not a number, becomes a JavaError.
    """
    timed_out, finished = threading.Event(), threading.Event()
    problem = None
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = _start(arguments, log)
        watch = threading.Thread(target=_watch, args=(process, time_limit, timed_out, finished))
        watch.start()
        try:
            yield process, log
            process.communicate()
        except (OSError, ValueError) as error:
            problem = error
            # A broken pipe means that the program is about to end. Wait for its exit code.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
        finally:
            finished.set()
            watch.join()
            code = process.poll()
            _kill(process)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if timed_out.is_set():
            raise JavaError(f"Java gave no result within {time_limit:g} s") from problem
        if code:
            raise JavaError(f"Java ended with exit code {code}: {_error_line(log)}") from problem
        if problem:
            raise JavaError(f"Java's answer is invalid: {problem}") from problem


def _watch(process, time_limit, timed_out, finished):
    """Kill the process after `time_limit` seconds, or when this process is asked to stop.

    timed_out: an event that is set at the time limit. finished: an event that ends this function.
    """
    deadline = time.monotonic() + time_limit
    while not finished.wait(min(0.2, max(0.0, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            timed_out.set()
        if timed_out.is_set() or signals.stop_requested():
            return _kill(process)


def _start(arguments: Sequence, log: TextIO) -> subprocess.Popen:
    """Start `java ARGUMENTS`, with `log` as its stderr. Raises JavaError."""
    java = shutil.which("java")
    if java is None:
        raise JavaError("no Java: there is no `java` on PATH")
    try:
        return subprocess.Popen(
            [java, "-Dfile.encoding=UTF-8", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            errors="replace",
            # `java` may be a script that starts Java, so `_kill` kills its process group.
            start_new_session=True,
        )
    except OSError as error:
        raise JavaError(f"{java} cannot be started: {error.strerror}") from error


def _kill(process: subprocess.Popen):
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _error_line(log: TextIO) -> str:
    """Return the first line of a log that begins with an error; without such a line, the last."""
    log.seek(0)
    lines = [line.strip() for line in log if line.strip()]
    last = lines[-1] if lines else "it wrote nothing"
    return next(filter(_ERROR_LINE.match, lines), last)
