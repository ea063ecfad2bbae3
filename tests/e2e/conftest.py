"""Runs of seconds that tests disturb, and the same ones undisturbed."""

import pytest

from tests.captioning.conftest import s3, s3_server  # noqa: F401
from tests.soak.runs import kept_runs, write_config


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    """Return the configuration of a run of 3 epochs of 8 steps of 8 images."""
    return write_config(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def finished(config):
    """Return a function that gives the folder of a run that nothing disturbed, by its settings."""
    return kept_runs(config)
