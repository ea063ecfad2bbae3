"""Runs of a few seconds, for tests to disturb, and undisturbed runs to compare with."""

import pytest

from tests.captioning.conftest import s3, s3_server  # noqa: F401
from tests.soak.runs import kept_runs, write_config


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    """Return the configuration of a run of 3 epochs of 8 steps of 8 images."""
    return write_config(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def finished(config):
    """Return a function that returns the folder of an undisturbed run with given settings."""
    return kept_runs(config)
