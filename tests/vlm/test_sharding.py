"""A vision-language model sharded over two processes, with and without LoRA."""

import resource
import signal

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")
pytest.importorskip("peft", reason="peft is in the tests from Python 3.10")

from captioning.models import checkpoints
from captioning.training.checkpointing import Checkpointing
from tests.runs import (
    Run,
    assert_close_runs,
    be_quick,
    each_step,
    kept_runs,
    needs_fsdp,
    weights,
    write_config,
)
from tests.vlm import folders

pytestmark = [pytest.mark.slow, needs_fsdp]
ONE = ("batch_size=8", "max_epoch=1", "checkpoint_every=2")
TWO = ("batch_size=4", *ONE[1:])
DIVIDED = (*TWO, "sharding=fsdp", "rank_timeout=20")
LORA = "lora={r: 2, alpha: 4, dropout: 0.0}"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharding")
    folders.write("Idefics3ForConditionalGeneration", str(folder / "model"))
    path = write_config(folder, train_images=24)
    keys = f"model: vlm\nvlm: {folder / 'model'}\nprompt: Describe it.\naugmentation: none\n"
    path.write_text(path.read_text() + keys)
    return path


@pytest.fixture(scope="module")
def finished(config):
    run = kept_runs(config)
    return lambda *settings: run(*settings, processes=1 if ONE[0] in settings else 2)


def test_it_learns_as_in_one_process(finished):
    assert_close_runs(finished(*DIVIDED, "vit_grad_ckpt=true"), finished(*ONE))


def test_one_process_ddp_and_fsdp_train_the_same_adapter(finished):
    alone = finished(*ONE, LORA)
    assert all("lora_" in name for name in weights(alone))
    assert_close_runs(finished(*TWO, LORA), alone)
    assert_close_runs(finished(*DIVIDED, LORA), alone)


def test_in_bf16_it_follows_one_process_and_saves_float32(finished):
    settings = ("captions_per_image=2", "precision=bf16")
    divided, alone = finished(*DIVIDED, *settings), finished(*ONE, *settings)
    for name in ("loss", "grad_norm"):
        assert each_step(divided, name) == pytest.approx(each_step(alone, name), rel=0.02)
    assert all(w.dtype == torch.float32 for w in weights(divided).values())


def with_a_full_disk(rank):
    """A hook: from the end of the epoch on, rank 0 cannot write files above 20 kB."""
    be_quick(rank)
    save_any = Checkpointing.save

    def save(self, progress, step=0):
        if rank == 0 and not progress.steps:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        save_any(self, progress, step)

    Checkpointing.save = save


def test_one_rank_cannot_write_and_the_run_ends_as_if_it_could(finished, config, tmp_path):
    folder, settings = tmp_path / "run", (*DIVIDED, "vit_grad_ckpt=true")
    run = Run(config, folder, *settings, processes=2, hook=with_a_full_disk)
    assert run.wait() == [2, 2]
    line = f"error: cannot write {folder}/checkpoint_00.pth: File too large"
    errors = [text for text in run.said().splitlines() if "error" in text.lower()]
    assert errors == [line, f"[rank 1] {line}"]
    assert [path.name for path in checkpoints.saved(folder)] == ["checkpoint_00_step00000002.pth"]
    run = Run(config, folder, *settings, processes=2)
    assert run.wait() == [0, 0], run.said()
    assert f"resuming from {folder}/checkpoint_00_step00000002.pth" in run.said()
    assert not [*folder.glob(".*")]
    whole = finished(*settings)
    assert each_step(folder, "loss") == each_step(whole, "loss")
    torch.testing.assert_close(weights(folder), weights(whole), rtol=0, atol=0)
