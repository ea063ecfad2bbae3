"""A vision-language model divided over two processes, with and without LoRA, beside one process."""

import os
import signal
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")
pytest.importorskip("peft", reason="peft is in the tests from Python 3.10")

from BLIP import read_checkpoint
from captioning.files.manifest import verify
from captioning.models import checkpoints
from captioning.training.fine_tuning import FineTuning
from captioning.training.sharding import FIRST_TORCH
from tests.smile import tiny_vlm
from tests.soak.runs import Run, be_quick, last_step, log, write_config

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
pytestmark = pytest.mark.skipif(TORCH < FIRST_TORCH, reason="sharding: fsdp needs a later torch")
KEYS = """
model: vlm
vlm: {folder}
prompt: Describe the image.
augmentation: none
"""
SHORT = ("max_epoch=1", "checkpoint_every=2")
ONE = ("batch_size=8", *SHORT)
TWO = ("batch_size=4", *SHORT)
DIVIDED = (*TWO, "sharding=fsdp", "checkpoint_format=sharded", "rank_timeout=20")
LORA = "lora={r: 2, alpha: 4, dropout: 0.0}"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Return the configuration of a run of 4 steps of 8 images."""
    folder = tmp_path_factory.mktemp("sharding")
    tiny_vlm.write(str(folder / "model"))
    path = write_config(folder, train_images=32)
    path.write_text(path.read_text() + KEYS.format(folder=folder / "model"))
    return path


@pytest.fixture(scope="module")
def finished(config):
    """Return a function that gives the folder of a finished run."""
    found = {}

    def run(*settings):
        if settings not in found:
            folder = config.with_name(f"run{len(found)}")
            processes = 1 if ONE[0] in settings else 2
            run = Run(config, folder, *settings, processes=processes)
            assert run.wait() == [0] * processes, run.said()
            found[settings] = folder
        return found[settings]

    return run


def weights(folder):
    return read_checkpoint(str(folder / checkpoints.BEST))["model"]


def each_step(folder):
    steps = [line for line in log(folder) if line["event"] == "step"]
    return [line[name] for name in ("loss", "grad_norm") for line in steps]


def assert_close(first, second):
    assert each_step(first) == pytest.approx(each_step(second), rel=1e-4)
    one, two = weights(first), weights(second)
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-5, rtol=1e-4)


def assert_same(first, second):
    assert each_step(first) == each_step(second)
    one, two = weights(first), weights(second)
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


def test_it_learns_as_in_one_process(finished):
    """Recomputed, too; and its checkpoint, in parts, is the one that would be whole."""
    divided = finished(*DIVIDED, "vit_grad_ckpt=true")
    assert_close(divided, finished(*ONE))
    parts = divided / checkpoints.BEST
    assert sorted(p.name for p in parts.iterdir()) == [
        ".metadata", "__0_0.distcp", "__1_0.distcp", "rest.pth"
    ]  # fmt: skip
    for path in checkpoints.saved(divided):
        verify(path)
    assert_same(divided, finished(*TWO, "sharding=fsdp", "vit_grad_ckpt=true"))
