"""METEOR's Java process: its command, how it is shared, and what is said of one that fails.

A script stands for Java. tests/captioning/metrics/test_coco.py has the values.
"""

import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from pycocoevalcap.meteor import meteor as pycocoevalcap

from captioning.metrics import meteor
from captioning.metrics.java import JavaError, java_process, java_version
from captioning.metrics.meteor import meteor_scores
from tests.captioning.conftest import is_running
from tests.captioning.metrics.meteor_java import CAPTIONS, REFERENCES, SCRIPT


def scores():
    return meteor_scores(CAPTIONS, REFERENCES)


def test_the_command_is_that_of_pycocoevalcap(monkeypatch):
    commands = []

    def start(command, **_):
        commands.append([*map(str, command)])
        raise OSError

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(pycocoevalcap.Meteor, "__del__", lambda self: None)  # it has no process
    with pytest.raises(OSError):
        pycocoevalcap.Meteor()
    with pytest.raises(JavaError), meteor._start_meteor(1):
        pass
    theirs, ours = commands
    jar = theirs.index(pycocoevalcap.METEOR_JAR)
    assert ours[-len(theirs[jar:]) + 1 :] == theirs[jar + 1 :]
    assert Path(ours[-len(theirs[jar:])]).name == theirs[jar] and "-jar" in ours


def test_failing_java_is_reported(fake_java):
    fake_java(
        "read line; echo 1; echo 'Picked up JAVA_TOOL_OPTIONS' >&2; "
        "echo 'Exception in thread main: heap space' >&2; echo '    at Meteor.main' >&2; exit 3"
    )
    with pytest.raises(JavaError, match=r"exit code 3: Exception in thread main: heap space$"):
        scores()
    fake_java("cat")
    with pytest.raises(JavaError, match=r"is invalid: .*SCORE"):
        scores()


def test_a_shared_process_scores_for_forks_and_is_replaced(fake_java, monkeypatch):
    fake_java(SCRIPT)
    alone, start, processes = scores(), meteor._start_meteor, []

    @contextmanager
    def shared_alone(seconds):
        if seconds != meteor._SHARED_SECONDS:
            raise JavaError("its own")
        with start(seconds) as found:
            processes.append(found[0])
            yield found

    monkeypatch.setattr(meteor, "_start_meteor", shared_alone)
    with meteor.shared_process(start=True):
        assert len(processes) == 1  # before the first request
        assert scores() == alone
        child = os.fork()
        if child == 0:
            os._exit(7 if scores() == alone else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(processes) == 1
        processes[0].kill()
        processes[0].wait()
        assert scores() == alone and len(processes) == 2
    assert processes[1].poll() is not None and meteor.ADDRESS not in os.environ
    with pytest.raises(JavaError, match="its own"):
        scores()


def test_versions_of_java_and_one_that_cannot_run(fake_java):
    for printed, version in (('openjdk version "17.0.15" 2025', 17), ('java version "1.8.0"', 8)):
        fake_java(f"echo '{printed}' >&2")
        assert java_version() == version
    fake_java("echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    with pytest.raises(JavaError, match="exit code 1: Unable to locate a Java Runtime"):
        java_version()
    Path(os.environ["PATH"].split(os.pathsep)[0], "java").write_bytes(b"\0\1\2")
    with pytest.raises(JavaError, match="cannot be started"):
        java_version()


def test_java_is_killed_with_what_it_started(fake_java, tmp_path):
    # The script's own child holds the pipes, which must not be waited for either.
    fake_java(f"sleep 60 & echo $! > {tmp_path}/child; wait")
    raises = pytest.raises(JavaError, match=r"no result within 2 s")
    with raises, java_process([], time_limit=2) as (process, _):
        process.communicate("question")
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 30
    while is_running(child):
        assert time.monotonic() < until

    fake_java("exec sleep 60")  # a bug in the block is not hidden, and leaves no Java
    with pytest.raises(ZeroDivisionError), java_process([], time_limit=60) as (process, _):
        1 / 0  # noqa: B018
    assert process.poll() is not None
