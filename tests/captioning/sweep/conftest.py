"""Runs of a second each, in this process."""

import pytest

from captioning import train
from captioning.runtime import signals
from captioning.sweep import __main__ as sweep
from captioning.sweep import one_run
from tests.tiny_run import TINY_RUN


@pytest.fixture(scope="session")
def tiny_config(scenes, tmp_path_factory):
    """Return the path of a configuration of one epoch of a few scenes."""
    path = tmp_path_factory.mktemp("sweep") / "tiny.yaml"
    text = TINY_RUN.format(data=scenes).replace("max_epoch: 3", "max_epoch: 1")
    text += "lr_schedule: exponential\n"  # more epochs may follow
    path.write_text(text + "max_length: 8\nmetrics: [length, facts]\nfacts_file: scenes.json\n")
    return path


@pytest.fixture
def in_process(monkeypatch, tmp_path):
    """Run programs one after the other in this process; return the names of those that ran.

    Those named in `fail` say what a program would have said; "stop" ends all.
    """
    monkeypatch.setenv("PATH", str(tmp_path))  # no Java: its start takes seconds
    began, fail = [], {}

    def run(programs, slots):
        failures = {}
        for each in programs:
            if fail.get(each.name) == "stop":
                raise signals.Stopped
            began.append(each.name)
            if each.name in fail:
                failures[each.name] = fail[each.name]
                continue
            module, arguments = each.command[2], each.command[3:]
            program = {"captioning.train": train, "captioning.sweep.one_run": one_run}[module]
            if program.main(arguments) != 0:
                failures[each.name] = "it said why"
        return failures

    monkeypatch.setattr(sweep, "run_programs", run)
    return began, fail
