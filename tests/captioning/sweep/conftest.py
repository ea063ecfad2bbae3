"""Sweeps with runs of a second each, in this process."""

import pytest

from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.sweep import __main__ as program
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

    def run_jobs(jobs, slots, observer, keep_going=False):
        failures = {}
        for job in jobs:
            if fail.get(job.name) == "stop":
                raise signals.Stopped
            began.append(job.name)
            observer.on_start(job)
            reason = fail.get(job.name) or (job.run() and "it said why")
            observer.on_end(job.name, reason)
            if reason and not keep_going:
                raise UserError(f"{job.name} failed: {reason}")
            if reason:
                failures[job.name] = reason
        return failures

    monkeypatch.setattr(program, "run_jobs", run_jobs)
    monkeypatch.setattr(program, "prepare_jobs", lambda slots: None)
    return began, fail
