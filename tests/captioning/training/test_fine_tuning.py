"""Fine-tuning on a small data set: what it writes, resumes, weights and refuses."""

import copy
import json
import math

import pytest
import torch

from captioning.config import load_config
from captioning.data import normalise
from captioning.runtime.errors import UserError
from captioning.training.selection import read_scores
from tests.captioning.training.conftest import first_gradient
from tests.tiny import log_of

NO_DROPOUT = ["med_config.hidden_dropout_prob=0", "med_config.attention_probs_dropout_prob=0"]


def test_a_run_learns_and_leaves_everything(done):
    tuning = done("log_every=1", "max_epoch=2", "init_lr=1e-2")
    folder = tuning.folder
    steps = log_of(folder, "step")
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[-1]["loss"] < 0.9 * steps[0]["loss"]
    for line in steps:
        assert line["loss"] == pytest.approx(0.5 * line["mle"] + 0.5 * line["smile"])
    rates = [line["learning_rate"] for line in steps]
    assert rates == pytest.approx([1e-2] * 3 + [5e-3] * 3)
    assert len(log_of(folder, "epoch")) == len(log_of(folder, "val")) == 2
    assert {path.name for path in folder.iterdir()} == {
        *("checkpoint_00.pth", "checkpoint_01.pth", "checkpoint_best.pth"),
        *("config.yaml", "run.json", "selected.json", "log.jsonl", "tensorboard", "result"),
    }
    saved = torch.load(folder / "checkpoint_01.pth", weights_only=True)
    assert {"model", "optimizer", "config", "epoch"} <= saved.keys()
    assert saved["config"]["objective"] == {"mle": 0.5, "smile": 0.5}
    captions = json.loads((folder / "result" / "val_epoch01.json").read_text())
    assert [set(entry) for entry in captions] == [{"image_id", "caption"}] * 5
    record = json.loads((folder / "run.json").read_text())
    assert torch.__version__.startswith(record["versions"]["torch"]) and record["processes"] == 1
    assert load_config(folder / "config.yaml") == tuning.config.model_copy(
        update={"select": "last"}
    )
    assert any((folder / "tensorboard").iterdir())


DROPS_IMAGES = ["drop_image=0.4", "null_image=learnt"]
REWARDED = ["reward={facts: 1.0, cider: 0.5}", "facts_file=scenes.json", "max_tokens=12"]
REWARDED += ["reward_samples=3", "objective={smile: 0.1}"]
SLOW = [["drop_image=0.4", "null_image=mean"], REWARDED]


@pytest.mark.parametrize(
    "settings",
    [DROPS_IMAGES, *(pytest.param(s, marks=pytest.mark.slow) for s in SLOW)],
)
def test_an_interrupted_run_ends_as_the_undisturbed_one(run, resumed, scored, settings):
    run(*settings, "max_epoch=2", folder="whole").run()
    again = resumed(*settings, "max_epoch=2").folder
    folders = (again.with_name("whole"), again)
    whole, again = (torch.load(folder / "checkpoint_01.pth") for folder in folders)
    for part in ("model", "optimizer"):
        torch.testing.assert_close(whole[part], again[part], rtol=0, atol=0)


SCORED = ["metrics=[coco, length]"]  # by the fixture `scored`


def test_the_best_epoch_is_remembered_over_a_resume(done, scored, capsys):
    scored.update({e: {"CIDEr": c, "Bleu_4": 0.0} for e, c in enumerate((0.3, 0.9, 0.5))})
    done("max_epoch=2", "lr_schedule=exponential", "select=CIDEr + Bleu_4", *SCORED)
    capsys.readouterr()
    second = done("max_epoch=3", "lr_schedule=exponential", *SCORED)  # `select` is the run's
    shown = capsys.readouterr().err
    assert "weights are random" not in shown and "resuming from" in shown
    assert torch.load(second.folder / "checkpoint_best.pth")["epoch"] == 1


def test_weights_that_no_run_can_resume_from_are_not_replaced(done, scored):
    folder = done("max_epoch=1").folder
    (folder / "checkpoint_00.pth").unlink()
    best = (folder / "checkpoint_best.pth").read_bytes()
    with pytest.raises(UserError, match="has weights of an earlier run, but no checkpoint to resu"):
        done("max_epoch=1")
    assert (folder / "checkpoint_best.pth").read_bytes() == best


def test_scores_of_an_epoch_go_when_it_is_trained_again(run, scored):
    folder = run("max_epoch=2").run().folder
    (folder / "checkpoint_01.pth").write_bytes(b"damaged")
    scored[1] = {"CIDEr": 5.0}
    assert run("max_epoch=2").set_up().number == 3
    run("max_epoch=2").run()
    assert read_scores(folder, "val_epoch01")["CIDEr"] == 5.0


def test_two_epochs_are_those_of_a_plain_loop(run, scored):
    """AdamW, its settings, warm-up and the cosine, written out, to the very bit."""
    settings = dict(warmup_steps=2, min_lr=1e-4, weight_decay=0.3, batch_size=8)
    overrides = [f"{key}={value}" for key, value in settings.items()]
    tuning = run(*NO_DROPOUT, "max_epoch=2", "log_every=1", *overrides).set_up()
    plain = copy.deepcopy(tuning.captioner)
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=0.3, fused=True)
    rates = iter([0.0, 5e-4, 1e-3] + [5.5e-4] * 3)
    losses = []
    for epoch in range(2):
        for batch in tuning.batches(epoch):
            optimizer.param_groups[0]["lr"] = next(rates)
            optimizer.zero_grad()
            loss = plain(normalise(batch["image"]), batch["captions"]).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    tuning.run()
    torch.testing.assert_close(tuning.captioner.state_dict(), plain.state_dict(), rtol=0, atol=0)
    logged = [line["loss"] for line in log_of(tuning.folder, "step")]
    # Logged means have been multiplied by the number of tokens and divided by it.
    assert logged == pytest.approx(losses, rel=1e-15)


def one_step(run, **settings):
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return first_gradient(run(*NO_DROPOUT, "max_epoch=1", *overrides))


def test_a_gradient_is_clipped(run, scored):
    free = one_step(run, batch_size=24)
    norm = math.sqrt(sum(float(g.square().sum()) for g in free.values()))
    clipped = one_step(run, clip_grad_norm=norm / 4, batch_size=24)
    expected = {name: g / 4 for name, g in free.items()}
    torch.testing.assert_close(clipped, expected, rtol=1e-4, atol=1e-7)
    clipped = one_step(run, clip_grad_value=1e-3, batch_size=24)
    expected = {name: g.clamp(-1e-3, 1e-3) for name, g in free.items()}
    torch.testing.assert_close(clipped, expected)


def test_dropout_depends_on_the_rank_and_the_batchs_number(run, monkeypatch):
    tuning = run().set_up()
    batch = tuning.batches()[0]
    batch["image"] = normalise(batch["image"])

    def loss(rank, number):
        monkeypatch.setattr("captioning.runtime.distributed.rank", lambda: rank)
        return tuning.step._forward(batch, number).loss.item()

    assert loss(0, 0) == loss(0, 0)
    assert len({loss(0, 0), loss(1, 0), loss(0, 1), loss(1, 1)}) == 4


def test_bf16_follows_float32(run, scored):
    full = one_step(run, batch_size=24)
    mixed = one_step(run, batch_size=24, precision="bf16")
    name = "text_decoder.bert.embeddings.word_embeddings.weight"
    assert mixed[name].dtype == torch.float32
    assert not torch.equal(full[name], mixed[name])
    assert (full[name] - mixed[name]).norm() < 0.1 * full[name].norm()


@pytest.mark.slow
def test_compiled_parts_give_the_same_gradient(run, scored, quick_compiler):
    eager = one_step(run, batch_size=24)
    tuning = run(*NO_DROPOUT, "max_epoch=1", "batch_size=24", "compile=true")
    compiled = first_gradient(tuning)
    parts = (tuning.captioner.visual_encoder, tuning.captioner.text_decoder)
    assert all(part._compiled_call_impl is not None for part in parts)
    assert quick_compiler.frame_count > 1
    torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-5)


def test_too_few_batches_to_accumulate_is_one_line(run):
    with pytest.raises(UserError, match="accumulation_steps is 9, but an epoch has only 3 batches"):
        run("accumulation_steps=9").run()


def test_it_validates_every_few_epochs_and_after_the_last(done, scored):
    tuning = done("eval_every=2", "max_epoch=3")
    assert [line["step"] for line in log_of(tuning.folder, "val")] == [1, 2]
    assert (tuning.folder / "checkpoint_best.pth").exists()
