"""The configuration of runs of seconds."""

from tests.e2e.conftest import config  # noqa: F401
