"""Sweeps with runs of a second each, in this process."""

import pytest

from captioning.runtime import signals
from captioning.sweep import runs
from tests.captioning.report.empty_figures import leave_figures_empty
from tests.tiny import TINY_RUN


@pytest.fixture(scope="session")
def tiny_config(scenes, tmp_path_factory):
    """Return the path of a configuration of one epoch of a few scenes."""
    path = tmp_path_factory.mktemp("sweep") / "tiny.yaml"
    text = TINY_RUN.format(data=scenes).replace("max_epoch: 3", "max_epoch: 1")
    text += "lr_schedule: exponential\n"  # more epochs may follow
    path.write_text(text + "max_length: 8\nmetrics: [length, facts]\nfacts_file: scenes.json\n")
    return path


@pytest.fixture
def in_process(monkeypatch, no_java):
    """Run jobs one after the other in this process; return the names of those that began.

    A job that is a key of `fail` fails with its text; "stop" stops the sweep. There is no Java, and
    figures are empty.
    """
    leave_figures_empty(monkeypatch)
    began, fail = [], {}

    def run(jobs, slots):
        failures = {}
        for job in jobs:
            if fail.get(job.name) == "stop":
                raise signals.Stopped
            began.append(job.name)
            if job.name in fail:
                failures[job.name] = fail[job.name]
            elif job.run() != 0:
                failures[job.name] = "it said why"
        return failures

    monkeypatch.setattr(runs, "run_in_slots", run)
    return began, fail
