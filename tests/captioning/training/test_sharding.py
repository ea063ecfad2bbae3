"""Runs with FSDP on two processes, compared with DDP and with one process."""

import json

import pytest
import torch

from BLIP import read_checkpoint
from captioning.config import load_config
from captioning.models import checkpoints
from captioning.models.build import captioner_from
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.training.fsdp import check_sharding
from captioning.training.step import TrainingStep
from tests.programs import raises_line
from tests.runs import (
    Run,
    assert_close_runs,
    each_step,
    kept_runs,
    needs_fsdp,
    stop_at,
    weights,
    write_config,
)
from tests.tiny import CLASSIC

pytestmark = needs_fsdp
BLIP = ("batch_size=4", "max_epoch=1", "vit.depth=2", "med_config.num_hidden_layers=2")
LSTM = ("model=lstm", *CLASSIC, "image_size=48", "batch_size=4", "max_epoch=1")
DIVIDED = ("sharding=fsdp", "keep_checkpoints=all")
CLIPPED = ("accumulation_steps=2", "clip_grad_norm=0.1", "clip_grad_value=0.01")
NULL_IMAGE = ("drop_image=0.4", "null_image=learnt")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Return the path of a configuration of epochs of 4 steps."""
    return write_config(tmp_path_factory.mktemp("sharding"), train_images=32)


@pytest.fixture(scope="module")
def finished(config):
    return kept_runs(config)


def count_what_is_kept(path):
    """A hook: write the number of values that each process keeps, and of all values, to a file."""

    def hook(rank):
        call = TrainingStep.__call__

        def counted(self, *arguments):
            result = call(self, *arguments)
            kept = [*self.learner.parameters()]
            for state in self.optimizer.state.values():
                kept += [value for value in state.values() if value.ndim]
            own = sum(tensor.to_local().numel() for tensor in kept)
            path.with_suffix(f".{rank}").write_text(
                json.dumps([own, sum(tensor.numel() for tensor in kept)])
            )
            return result

        TrainingStep.__call__ = counted

    return hook


@pytest.mark.slow
def test_it_learns_as_without_and_each_process_keeps_its_part(finished, config):
    settings = (*BLIP, *CLIPPED, *NULL_IMAGE, "vit_grad_ckpt=true", "vit_ckpt_layer=1")
    counts = config.with_name("counts")
    sharded = finished(*settings, "sharding=fsdp", hook=count_what_is_kept(counts))
    assert_close_runs(sharded, finished(*settings))
    (one, whole), (two, _) = (json.loads(counts.with_suffix(f".{n}").read_text()) for n in (0, 1))
    assert one + two == whole and max(one, two) < 0.6 * whole
    assert weights(sharded)["null_image.vector"].any()


@pytest.mark.slow
def test_a_classic_captioner_learns_as_without(finished):
    """Weights before a normalisation have gradients of rounding alone, which Adam makes large."""
    losses = each_step(finished(*LSTM), "loss")
    assert each_step(finished(*LSTM, "sharding=fsdp"), "loss") == pytest.approx(losses, rel=0.01)


@pytest.mark.slow
def test_a_run_goes_on_divided_or_not(finished, config, tmp_path):
    """From two processes to one and back."""
    undropped = [f"med_config.{n}_dropout_prob=0" for n in ("hidden", "attention_probs")]
    settings = (*BLIP, *undropped)
    for step, (processes, *others) in enumerate(
        [(2, *DIVIDED), (1, "batch_size=8"), (2, *DIVIDED)], 1
    ):
        hook = stop_at(step) if step < 3 else None
        run = Run(config, tmp_path / "run", *settings, *others, processes=processes, hook=hook)
        assert run.wait() == [0] * processes, run.said()
    assert_close_runs(tmp_path / "run", finished(*settings))
    alone = read_checkpoint(str(tmp_path / "run" / "weights_00.pth"))["model"]
    assert all(alone[name].equal(value) for name, value in weights(tmp_path / "run").items())


@pytest.mark.slow
def test_its_checkpoint_is_read_as_any_other(finished, config):
    """Its captions equal those of the validation."""
    folder = finished(*BLIP, "sharding=fsdp")
    settings = load_config(folder / "config.yaml")
    captioner, _ = captioner_from(settings, str(folder / checkpoints.BEST))
    tied = captioner.text_decoder.cls["predictions"].decoder.weight
    assert tied is captioner.text_decoder.bert["embeddings"].word_embeddings.weight
    run = Run(config, folder, *BLIP, "sharding=fsdp", "--evaluate", "--eval_split", "val")
    assert run.wait() == [0], run.said()
    made = json.loads((folder / "result" / "val.json").read_text())
    assert made == json.loads((folder / "result" / "val_epoch00.json").read_text())


@pytest.mark.parametrize(
    ("settings", "processes", "version", "line"),
    [
        (["sharding=fsdp"], 1, "2.9.0", "fsdp, but there is only one process; start several (NPRO"),
        (["sharding=fsdp", "compile=true"], 2, "2.9.0", "fsdp, but compile is true, which does no"),
        (["sharding=fsdp", "precision=fp16"], 2, "2.9.0", "fsdp, but precision is fp16, and fsdp"),
        (["sharding=fsdp"], 2, "2.8.0+cpu", "fsdp, but this is torch 2.8.0+cpu, which computes wr"),
    ],
)
def test_settings_that_cannot_be_combined_are_one_line(
    config, monkeypatch, settings, processes, version, line
):
    monkeypatch.setattr(distributed, "world_size", lambda: processes)
    monkeypatch.setattr(torch, "__version__", version)
    with raises_line(UserError, line):
        check_sharding(load_config(config, settings))
    check_sharding(load_config(config, settings[1:]))
