"""What the smallest forms of benchmarks share."""

import multiprocessing

import pytest


@pytest.fixture
def forked(monkeypatch):
    """Let memory be measured in processes that begin with what is imported here.

    Fresh ones, as a benchmark's are, import torch for each contender.
    """
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr("benchmarks.measure.multiprocessing.get_context", lambda method: fork)
