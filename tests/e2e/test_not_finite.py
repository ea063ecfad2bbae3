"""A loss or a gradient of one of two processes that is not finite stops both, with its line."""

import json

import pytest
import torch

from BLIP import BlipCaptioner
from captioning.models import checkpoints
from captioning.training.fine_tuning import FineTuning
from tests.soak.runs import Run, be_quick, difference, last_step, write_config

TWO = ("batch_size=4", "rank_timeout=20")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Return the configuration of a run of 3 epochs of 8 steps of 8 images."""
    return write_config(tmp_path_factory.mktemp("not_finite"))


def in_step_5_of_rank_1(fail, images):
    """A hook: the fifth step of that rank fails, each time it is tried; its images go to a file."""

    def hook(rank):
        be_quick(rank)
        step_of, forward = FineTuning._optimiser_step, BlipCaptioner.forward
        failing = []

        def optimiser_step(self, batches, step):
            batch = next(batches)
            failing[:] = [rank == 1 and step == 4]
            if failing[0]:
                images.write_text(json.dumps(batch["image_id"]))
            return step_of(self, iter([batch]), step)

        def failing_forward(self, *arguments):
            output = forward(self, *arguments)
            return fail(output) if failing[0] else output

        FineTuning._optimiser_step = optimiser_step
        BlipCaptioner.forward = failing_forward

    return hook


def bad_loss(output):
    return output._replace(loss=output.loss * float("nan"))


class BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * float("inf")


def bad_gradient(output):
    return output._replace(loss=BadGradient.apply(output.loss))


@pytest.mark.parametrize(("what", "fail"), [("loss", bad_loss), ("gradient", bad_gradient)])
def test_one_of_two_stops_both_with_its_line(config, tmp_path, what, fail):
    hook = in_step_5_of_rank_1(fail, tmp_path / "images")
    run = Run(config, tmp_path / "run", *TWO, processes=2, hook=hook)
    assert run.wait(60) == [2, 2], run.said()
    images = json.loads((tmp_path / "images").read_text())
    assert f"error: the {what} is not finite at step 5 (rank 1 had images {images})" in run.said()
    assert "Traceback" not in run.said() and last_step(tmp_path / "run") == 4

    folder = tmp_path / "run" / "not_finite_step00000005"
    report = json.loads((folder / "not_finite.json").read_text())
    first, second = (batches for (batches,) in report["ranks"])
    assert second["image_ids"] == images and first["image_ids"] != images
    assert first["seed"] != second["seed"]  # ranks draw dropout of their own
    assert isinstance(first["parts"]["loss"], float) and first["again"]["gradients"] == []
    assert second["again"]["gradients"] == report["gradients"] != []
    assert (second["parts"]["loss"] == "nan") == (what == "loss")
    assert checkpoints.read(folder / "checkpoint_00_step00000004.pth")["within"]["steps"] == 4

    if what == "loss":
        # Nothing was lost by the inquiry: without the fault the run goes on to its usual end.
        assert Run(config, tmp_path / "run", *TWO, processes=2).wait() == [0, 0]
        assert Run(config, tmp_path / "whole", *TWO, processes=2).wait() == [0, 0]
        assert difference(tmp_path / "whole", tmp_path / "run") is None
