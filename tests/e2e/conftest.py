"""Runs of seconds that tests disturb, and the object store."""

import pytest

from tests.captioning.conftest import s3, s3_server  # noqa: F401
from tests.runs import Run, kept_runs, write_config


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    """Return the path of a configuration of 3 epochs of 8 steps, for tests to disturb the run."""
    return write_config(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def finished(config):
    """Return a function that returns the folder of an undisturbed run with given settings."""
    return kept_runs(config)


@pytest.fixture
def run(config, tmp_path):
    """Return a function that does a run, which has to end with `code`, and returns its output.

    name: of its folder in the test's. Several processes end with one code each, the same.
    """

    def call(*settings, name="run", code=0, processes=1, hook=None):
        started = Run(config, tmp_path / name, *settings, processes=processes, hook=hook)
        assert started.wait() == [code] * processes, started.said()
        return started.said()

    return call
