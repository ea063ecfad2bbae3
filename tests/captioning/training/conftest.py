"""Runs on the tiny scenes, and validations with given scores."""

from pathlib import Path

import pytest
import torch

from captioning.config import load_config
from captioning.training import fine_tuning
from captioning.training.batches import training_batches
from captioning.training.step import TrainingStep
from captioning.training.validation import SplitEvaluation


class Ended(BaseException):
    """Ends a run within a step."""


class Tuning:
    """A run that a test starts, once or several times with `run`.

    - before_step: called with (step, batches, number) before each step, from 0; it may return
      other batches
    - step, number: the `TrainingStep` of the latest call, from its first step on, and its number
    """

    def __init__(self, config, monkeypatch):
        self.config, self.folder, self.step = config, Path(config.output_dir), None
        self.monkeypatch, self.before_step = monkeypatch, lambda step, batches, number: None

    def run(self):
        original = TrainingStep.__call__

        def call(step, batches, number):
            self.step, self.number = step, number
            return original(step, self.before_step(step, batches, number) or batches, number)

        with self.monkeypatch.context() as patch:
            patch.setattr(TrainingStep, "__call__", call)
            fine_tuning.fine_tune(self.config, torch.device("cpu"))
        return self

    def set_up(self, end=None):
        """Run up to the first step, or until `end`, which is called before it, raises Ended."""

        def stop(*_):
            raise Ended

        before, self.before_step = self.before_step, end or stop
        with pytest.raises(Ended):
            self.run()
        self.before_step = before
        return self

    @property
    def captioner(self):
        """The captioner, from the first step on. Not of a run with rewards."""
        return self.step.learner

    def batches(self, epoch=0):
        samples = fine_tuning.read_split(self.config, "train")
        preprocessing = fine_tuning.preprocessing_of(self.config)
        loader = training_batches(self.config, samples, preprocessing)
        loader.set_epoch(epoch)
        try:
            return list(loader)
        finally:
            loader.close()


@pytest.fixture
def run(request, scenes_config, tmp_path, monkeypatch):
    """Return a function that makes a `Tuning` with overrides, in a folder of the test."""
    given = getattr(request.module, "GIVEN", [])

    def make(*overrides, folder="run", **flags):
        flags = {"output_dir": str(tmp_path / folder), **flags}
        return Tuning(load_config(scenes_config, [*given, *overrides], flags), monkeypatch)

    return make


@pytest.fixture
def scored(monkeypatch):
    """Let validations have the scores that the test puts into a dict, by epoch; CIDEr 0 else."""
    by_epoch, default = {}, {"CIDEr": 0.0, "Bleu_4": 0.0}
    run = lambda self, captioner, name: by_epoch.get(int(name[-2:]), default)  # noqa: E731
    monkeypatch.setattr(SplitEvaluation, "run", run)
    return by_epoch


def first_gradient(tuning):
    """Return the gradients of the run's first step, as the optimizer gets them."""
    found, before = {}, tuning.before_step

    def watch(step, batches, number):
        def keep(*_, **__):
            named = step.learner.named_parameters()
            found.update({n: p.grad.clone() for n, p in named if p.grad is not None})
            raise Ended

        step.optimizer.register_step_pre_hook(keep)
        return before(step, batches, number)

    tuning.set_up(watch)
    return found
