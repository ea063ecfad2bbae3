"""Runs with FSDP on two processes, compared with DDP and with one process."""

import json

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from BLIP import read_checkpoint
from captioning.config import load_config
from captioning.models import checkpoints
from captioning.models.build import captioner_from
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.training.fsdp import check_sharding
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
LSTM = ("model=lstm", *CLASSIC, "image_size=48", "batch_size=8", "max_epoch=1")
FSDP = "sharding=fsdp"
BLIP = (
    *("batch_size=4", "max_epoch=1", "vit.depth=2", "med_config.num_hidden_layers=2"),
    *("med_config.hidden_dropout_prob=0", "med_config.attention_probs_dropout_prob=0"),
    *("accumulation_steps=2", "clip_grad_norm=0.1", "clip_grad_value=0.01", "drop_image=0.4"),
    *("vit_grad_ckpt=true", "vit_ckpt_layer=1", "keep_checkpoints=all"),
)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("sharding"))


@pytest.fixture(scope="module")
def finished(config):
    return kept_runs(config)


@pytest.mark.slow
def test_it_learns_as_without_and_each_process_keeps_its_part(finished, config):
    """Its checkpoint is read as any other: evaluation makes the captions of the validation."""
    counts = config.with_name("counts")

    def hook(rank):
        def count(optimizer, *_):
            moments = [state["exp_avg"] for state in optimizer.state.values()]
            sizes = [sum(m.to_local().numel() for m in moments), sum(m.numel() for m in moments)]
            counts.with_suffix(f".{rank}").write_text(json.dumps(sizes))

        register_optimizer_step_post_hook(count)

    folder = finished(*BLIP, FSDP, hook=hook)
    assert_close_runs(folder, finished(*BLIP))
    (one, whole), (two, _) = (json.loads(counts.with_suffix(f".{n}").read_text()) for n in (0, 1))
    assert one + two == whole and max(one, two) < 0.6 * whole
    settings = load_config(folder / "config.yaml")
    captioner, _ = captioner_from(settings, str(folder / checkpoints.BEST))
    tied = captioner.text_decoder.cls["predictions"].decoder.weight
    assert tied is captioner.text_decoder.bert["embeddings"].word_embeddings.weight
    run = Run(config, folder, *BLIP, FSDP, "--evaluate", "--eval_split", "val")
    assert run.wait() == [0], run.said()
    made, expected = (folder / "result" / name for name in ("val.json", "val_epoch00.json"))
    assert json.loads(made.read_text()) == json.loads(expected.read_text())


@pytest.mark.slow
def test_a_classic_captioner_learns_as_without(finished):
    """Weights before a normalisation have gradients of rounding alone, which Adam makes large."""
    losses = each_step(finished(*LSTM), "loss")
    assert each_step(finished(*LSTM, FSDP), "loss") == pytest.approx(losses, rel=0.01)


@pytest.mark.slow
def test_a_run_goes_on_divided_or_not(finished, config, tmp_path):
    folder = tmp_path / "run"
    for step, (processes, other) in enumerate([(2, FSDP), (1, "batch_size=8"), (2, FSDP)], 1):
        hook = stop_at(step) if step < 3 else None
        run = Run(config, folder, *BLIP, other, processes=processes, hook=hook)
        assert run.wait() == [0] * processes, run.said()
    assert_close_runs(folder, finished(*BLIP))
    alone = read_checkpoint(str(folder / "weights_00.pth"))["model"]
    torch.testing.assert_close(alone, weights(folder), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "processes", "version", "line"),
    [
        ([], 1, "2.9.0", "fsdp, but there is only one process; start several (NPRO"),
        (["compile=true"], 2, "2.9.0", "fsdp, but compile is true, which does no"),
        (["precision=fp16"], 2, "2.9.0", "fsdp, but precision is fp16, and fsdp"),
        ([], 2, "2.8.0+cpu", "fsdp, but this is torch 2.8.0+cpu, which computes wr"),
    ],
)
def test_settings_that_cannot_be_combined_are_one_line(
    config, monkeypatch, settings, processes, version, line
):
    monkeypatch.setattr(distributed, "world_size", lambda: processes)
    monkeypatch.setattr(torch, "__version__", version)
    with raises_line(UserError, line):
        check_sharding(load_config(config, [FSDP, *settings]))
    check_sharding(load_config(config, settings))
