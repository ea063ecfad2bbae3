"""Runs the Java programs that pycocoevalcap contains."""

import os
import re
import signal
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from captioning.runtime.errors import UserError

# Programs must not print and read numbers in the format of the user's locale.
OPTIONS = ("-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8")
_ERROR_LINE = re.compile(r"Exception in|Error|[\w.]+(Error|Exception)\b")


class JavaError(UserError):
    """A Java program gave no result. The text says why, in one line."""


def jar(name: str) -> str:
    """Return the path of a file of pycocoevalcap, such as "meteor/meteor-1.5.jar"."""
    [folder] = find_spec("pycocoevalcap").submodule_search_locations  # it has no __init__.py
    return os.path.join(folder, name)


def start_java(*arguments: str, **pipes: Any) -> subprocess.Popen:
    """Start `java ARGUMENTS` in its own process group. pipes: of Popen. Raises JavaError."""
    pipes = {"stdout": subprocess.PIPE, "encoding": "utf-8", "errors": "replace", **pipes}
    try:
        return subprocess.Popen(["java", *OPTIONS, *arguments], start_new_session=True, **pipes)
    except OSError as error:
        raise JavaError(f"no Java: there is no `java` on PATH ({error.strerror})") from error


def end_java(process: subprocess.Popen) -> None:
    """Kill a Java program with what it started, because `java` may be a script."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_java(*arguments: str, text: str = "", seconds: float) -> tuple[str, str]:
    """Return the output and the stderr of `java ARGUMENTS` for an input `text`.

    seconds: the program is killed after this time. Raises JavaError.
    """
    process = start_java(*arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(text, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise JavaError(f"Java gave no result within {seconds:g} s") from None
    finally:
        end_java(process)
    if process.returncode:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        lines = [*filter(_ERROR_LINE.match, lines), *lines[-1:], "it wrote nothing"]
        raise JavaError(f"Java ended with exit code {process.returncode}: {lines[0]}")
    return output, errors


def java_version() -> int:
    """Return the major version (8, 17, ...) of the `java` on PATH. Raises JavaError."""
    # Java 8 prints "1.8.0"; later versions print, for example, "9.0.1".
    match = re.search(r'version "(?:1\.)?(\d+)', run_java("-version", seconds=10)[1])
    if not match:
        raise JavaError("`java -version` prints no version")
    return int(match.group(1))
