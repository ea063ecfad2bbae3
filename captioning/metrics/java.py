"""Run a Java program: talk to it through pipes, and never wait longer than agreed."""

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

MEMORY = r"^[1-9][0-9]*[kKmMgG]$"  # how Java writes an amount of memory

_VERSION_SECONDS = 10.0
_ERROR_LINE = re.compile(r"Exception in|Error|[\w.]+(Error|Exception)\b")


class JavaError(Exception):
    """Why a Java program gave no result, in one line."""


def java_version() -> int:
    """Return the major version of the `java` on PATH (8, 17, ...); JavaError if it does not run."""
    with java_process(["-version"], _VERSION_SECONDS) as (process, log):
        process.communicate()
        log.seek(0)
        # Up to 8 the version is written 1.8.0, from 9 on 9.0.1.
        found = re.search(r'version "(?:1\.)?(\d+)', log.read())
    if not found:
        raise JavaError("`java -version` names no version")
    return int(found.group(1))


@contextlib.contextmanager
def java_process(
    arguments: Sequence, time_limit: float
) -> Iterator[tuple[subprocess.Popen, TextIO]]:
    """Start `java ARGUMENTS` and give (process, log), its UTF-8 pipes and what it writes to stderr.

    When the block ends the program has to end as well; it is killed after `time_limit` seconds,
    and where this process is asked to stop.
    Raises JavaError when it is not there, dies, or is late, and for an OSError or a ValueError in
    the block: a broken pipe, an answer that is no number.
    """
    late = threading.Event()
    problem = None
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = _start(arguments, log)
        done = threading.Event()
        guard = threading.Thread(target=_guard, args=(process, time_limit, late, done))
        guard.start()
        try:
            yield process, log
            process.communicate()
        except (OSError, ValueError) as error:
            problem = error
            # A program that broke the pipe is about to end: its exit code tells why.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
        finally:
            done.set()
            guard.join()
            code = process.poll()
            _kill(process)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if late.is_set():
            raise JavaError(f"Java gave no result within {time_limit:g} s") from problem
        if code:
            raise JavaError(f"Java ended with exit code {code}: {_last_words(log)}") from problem
        if problem:
            raise JavaError(f"Java's answer makes no sense: {problem}") from problem


def _guard(process, time_limit, late, done):
    """Kill the process when it is late, or not wanted any more."""
    until = time.monotonic() + time_limit
    while not done.wait(min(0.2, max(0.0, until - time.monotonic()))):
        if signals.stop_requested():
            return _kill(process)
        if time.monotonic() >= until:
            late.set()
            return _kill(process)


def _start(arguments, log):
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
            # A group of its own, to be killed as one: `java` may be a script that starts Java.
            start_new_session=True,
        )
    except OSError as error:
        raise JavaError(f"{java} cannot be started: {error.strerror}") from error


def _kill(process):
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _last_words(log):
    """Return the line of a log that names the error: above a Java stack trace, else the last."""
    log.seek(0)
    lines = [line.strip() for line in log if line.strip()]
    named = [line for line in lines if _ERROR_LINE.match(line)]
    return (named or lines or ["it wrote nothing"])[0 if named else -1]
