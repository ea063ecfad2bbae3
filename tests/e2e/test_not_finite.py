"""A loss or gradient of one of two processes that is not finite stops both with one line."""

import json

import pytest
import torch

from BLIP import BlipCaptioner
from captioning.models import checkpoints
from tests.runs import be_quick, before_steps, difference

TWO = ("batch_size=4", "max_epoch=1", "rank_timeout=20")


def in_step_5_of_rank_1(fail, images):
    """A hook: the fifth step of rank 1 always fails. Its image ids are written to a file."""

    def hook(rank):
        be_quick(rank)
        forward, is_failing = BlipCaptioner.forward, False

        def optimizer_step(rank, step, batches):
            nonlocal is_failing
            batch = next(batches)
            is_failing = (rank, step) == (1, 4)
            if is_failing:
                images.write_text(json.dumps(batch["image_id"]))
            return iter([batch])

        def failing_forward(self, *arguments):
            output = forward(self, *arguments)
            return fail(output) if is_failing else output

        before_steps(optimizer_step)(rank)
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


@pytest.mark.parametrize(
    ("what", "fail"),
    [("loss", bad_loss), pytest.param("gradient", bad_gradient, marks=pytest.mark.slow)],
)
def test_one_of_two_stops_both_with_its_line(run, finished, tmp_path, what, fail):
    hook = in_step_5_of_rank_1(fail, tmp_path / "images")
    said = run(*TWO, code=2, processes=2, hook=hook)
    images = json.loads((tmp_path / "images").read_text())
    # The gradient is summed over the ranks, so that the images of both are named.
    ranks = "(" if what == "loss" else "(rank 0 had images ["
    assert f"error: the {what} is not finite at step 5 {ranks}" in said
    assert f"rank 1 had images {images})" in said and "Traceback" not in said
    saved = checkpoints.read(tmp_path / "run" / "checkpoint_00_step00000004.pth")
    assert saved["within"]["steps"] == 4

    if what == "loss":
        # Without the fault, the run continues to its usual end.
        run(*TWO, processes=2)
        assert difference(finished("batch_size=4", "max_epoch=1"), tmp_path / "run") is None
