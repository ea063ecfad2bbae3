"""The scores of one evaluator, and Java: there, or a script in its place."""

import os

import pytest

from captioning.metrics.base import build_evaluators
from captioning.metrics.java import JavaError, java_version
from captioning.metrics.scoring import score


def scored(name, predictions, references=None, settings=None, **options):
    """Return the scores of captions by one evaluator. references: by default, "a" for each."""
    references = references or {image_id: ["a"] for image_id in predictions}
    return score(predictions, references, build_evaluators([name], settings, **options))


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
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")

    def install(script):
        java = tmp_path / "bin" / "java"
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)

    return install
