"""Runs on the tiny scenes, and validations with given scores."""

import json

import pytest
import torch

from captioning.config import load_config
from captioning.training import fine_tuning


@pytest.fixture
def run(request, scenes_config, tmp_path):
    """Return a function that sets up a run with overrides, in a folder of the test."""
    given = getattr(request.module, "GIVEN", [])

    def make(*overrides, folder="run", **flags):
        flags = {"output_dir": str(tmp_path / folder), **flags}
        config = load_config(scenes_config, [*given, *overrides], flags)
        return fine_tuning.FineTuning(config, torch.device("cpu"))

    return make


@pytest.fixture
def done(run):
    """Return a function that does a run with overrides, and returns it; see `run`."""

    def do(*overrides, **named):
        tuning = run(*overrides, **named)
        tuning.run()
        return tuning

    return do


@pytest.fixture
def resumed(run, monkeypatch):
    """Return a function that stops a run in the second step of its second epoch, and resumes it."""

    def resume(*overrides):
        broken = run(*overrides, "checkpoint_every=1")
        step = fine_tuning.FineTuning._optimizer_step

        def fail(self, batches, number):
            if number == 4:  # the second of the second epoch
                raise KeyboardInterrupt
            return step(self, batches, number)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(fine_tuning.FineTuning, "_optimizer_step", fail)
            broken.run()
        tuning = run(*overrides, "num_workers=2")
        assert (tuning.progress.epoch, tuning.progress.steps) == (1, 1)
        tuning.run()
        return tuning

    return resume


@pytest.fixture
def scored(monkeypatch):
    """Let validations have the scores that the test puts into a dict, by epoch; CIDEr 0 else."""
    by_epoch = {}

    def run(self, captioner, name):
        scores = by_epoch.get(int(name[-2:]), {"CIDEr": 0.0, "Bleu_4": 0.0})
        path = self.folder / "result" / name / "metrics.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"metrics": {k: {"value": v} for k, v in scores.items()}}))
        return scores

    monkeypatch.setattr(fine_tuning.SplitEvaluation, "run", run)
    return by_epoch


def without_dropout(tuning):
    """Return the run, in which dropout and the like stay switched off."""
    tuning.captioner.eval()
    tuning.step.model.train = lambda: None
    return tuning


def first_gradient(tuning):
    """Train an epoch; return the gradients at the first step, as the optimizer gets them."""
    found = {}

    def keep(*_, **__):
        named = tuning.captioner.named_parameters()
        found.setdefault("first", {n: p.grad.clone() for n, p in named if p.grad is not None})

    tuning.optimizer.register_step_pre_hook(keep)
    tuning._train_epoch(0)
    return found["first"]
