"""Whatever is called `java`, a caller gets its answer or one line that says what went wrong."""

import os
import time

import pytest

from captioning.metrics.java import JavaError, java_process, java_version
from tests.captioning.conftest import is_running


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
    ],
)
def test_version(fake_java, printed, version):
    fake_java(f"echo '{printed}' >&2")
    assert java_version() == version


def test_java_that_is_not_there_or_cannot_run(fake_java, monkeypatch, tmp_path):
    fake_java("echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    with pytest.raises(JavaError, match="exit code 1: Unable to locate a Java Runtime"):
        java_version()
    with open(os.environ["PATH"].split(os.pathsep)[0] + "/java", "wb") as java:
        java.write(b"\0\1\2")
    with pytest.raises(JavaError, match="cannot be started"):
        java_version()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match="no `java` on PATH"):
        java_version()


def test_hanging_java_is_killed_with_what_it_started(fake_java, tmp_path):
    # The script's own child holds the pipes, which must not be waited for either.
    fake_java(f"sleep 60 & echo $! > {tmp_path}/child; wait")
    raises = pytest.raises(JavaError, match=r"no result within 2 s")
    with raises, java_process([], time_limit=2) as (process, _):
        process.communicate("question")
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 30
    while is_running(child):
        assert time.monotonic() < until


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 1; exec sleep 60", "no result within 2 s"),
        ("echo nonsense", "is invalid: .*nonsense"),
        (
            "echo 'Picked up JAVA_TOOL_OPTIONS' >&2;"
            "echo 'Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space' >&2;"
            "echo '    at Meteor.main(Unknown Source)' >&2; exit 3",
            "exit code 3: Exception in .* Java heap space$",
        ),
    ],
)
def test_java_that_hangs_dies_or_answers_nonsense(fake_java, script, reason):
    fake_java(script)
    raises = pytest.raises(JavaError, match=reason)
    with raises, java_process([], time_limit=2 if "sleep" in script else 60) as (process, _):
        if "exit 3" in script:  # a broken pipe
            process.stdin.write("x" * 1_000_000)
            process.stdin.flush()
        float(process.stdout.readline())


def test_a_bug_in_the_block_is_not_hidden_and_leaves_no_java(fake_java):
    fake_java("exec sleep 60")
    with pytest.raises(ZeroDivisionError), java_process([], time_limit=60) as (process, _):
        1 / 0  # noqa: B018
    assert process.poll() is not None
