"""Java as the tests need it: there, not there, or a script in its place."""

import os

import pytest

from captioning.files import chat
from captioning.metrics import judge
from captioning.metrics.java import JavaError, java_version
from tests.captioning.chat_server import serving


@pytest.fixture(scope="session")
def java():
    """Skip the test where Java does not run."""
    try:
        java_version()
    except JavaError as error:
        pytest.skip(str(error))


@pytest.fixture
def fake_java(monkeypatch, tmp_path, own_meteor):
    """Return a function that puts a shell script in Java's place."""

    def install(script):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        java = folder / "java"
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return install


@pytest.fixture
def server(monkeypatch):
    """Return a server of a language model, which is asked one question at a time."""
    monkeypatch.setattr(chat, "FIRST_PAUSE_S", 0)
    monkeypatch.setattr(judge, "CONCURRENCY", 1)
    monkeypatch.delenv(judge.KEY_VARIABLE, raising=False)
    with serving() as server:
        yield server
