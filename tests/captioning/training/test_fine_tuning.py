"""Fine-tuning on a small data set: what it writes, resumes, weighs, ends early and refuses."""

import copy
import json
import math

import pytest
import torch

from captioning.config import load_config
from captioning.data.image import normalise
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError
from tests.captioning.training.conftest import first_gradient
from tests.programs import raises_line, unchanged
from tests.tiny import CAPTIONERS, CLASSIC, log_of

NO_DROPOUT = ["med_config.hidden_dropout_prob=0", "med_config.attention_probs_dropout_prob=0"]


def test_a_run_learns_and_leaves_everything(run):
    tuning = run("log_every=1", "max_epoch=3", "eval_every=2", "init_lr=1e-2").run()
    folder = tuning.folder
    steps = log_of(folder, "step")
    assert [line["step"] for line in steps] == [*range(1, 10)]
    assert steps[-1]["loss"] < 0.9 * steps[0]["loss"]
    for line in steps:
        assert line["loss"] == pytest.approx(0.5 * line["mle"] + 0.5 * line["smile"])
    rates = [line["learning_rate"] for line in steps[::3]]
    assert rates == pytest.approx([1e-2, 7.5e-3, 2.5e-3])
    # It validates every few epochs and after the last.
    assert [line["step"] for line in log_of(folder, "val")] == [1, 2]
    assert len(log_of(folder, "epoch")) == 3
    assert {path.name for path in folder.iterdir()} == {
        *("checkpoint_01.pth", "checkpoint_02.pth", "checkpoint_best.pth"),
        *("config.yaml", "run.json", "selected.json", "log.jsonl", "tensorboard", "result"),
    }
    saved = torch.load(folder / "checkpoint_02.pth", weights_only=True)
    assert {"model", "optimizer"} <= saved.keys() and (saved["epoch"], saved["items"]) == (2, 24)
    assert saved["config"]["objective"] == {"mle": 0.5, "smile": 0.5}
    record = json.loads((folder / "run.json").read_text())
    assert torch.__version__.startswith(record["versions"]["torch"]) and record["processes"] == 1
    expected = tuning.config.model_copy(update={"select": "last"})
    assert load_config(folder / "config.yaml") == expected
    assert any((folder / "tensorboard").iterdir())


def test_scores_of_an_epoch_go_when_it_is_trained_again(run, scored):
    folder = run("max_epoch=2").run().folder
    (folder / "checkpoint_01.pth").write_bytes(b"damaged")
    scored[1] = {"CIDEr": 5.0}
    again = run("max_epoch=2")
    assert again.set_up().number == 3
    again.run()
    assert [line["CIDEr"] for line in log_of(folder, "val")] == [0, 5]
    # Weights that no run can resume from are not replaced.
    for epoch in (0, 1):
        (folder / f"checkpoint_0{epoch}.pth").unlink()
    best = (folder / "checkpoint_best.pth").read_bytes()
    with raises_line(UserError, "has weights of an earlier run, but no checkpoint to resume"):
        run("max_epoch=2").run()
    assert (folder / "checkpoint_best.pth").read_bytes() == best


def test_a_validation_that_a_kill_left_without_its_log_line_gets_it(run, scored):
    """Also in a run that is over; nothing else changes, and the line is not repeated."""
    path = run("max_epoch=1").run().folder / "log.jsonl"
    text = path.read_text()
    assert '"val"' in text
    path.write_text("".join(line for line in text.splitlines(True) if '"val"' not in line))
    for _ in range(2):
        run("max_epoch=1").run()
        assert path.read_text() == text


def test_two_epochs_are_those_of_a_plain_loop(run, scored):
    """AdamW, its settings, warm-up and the cosine, written out, to the very bit."""
    settings = ["warmup_steps=2", "min_lr=1e-4", "weight_decay=0.3"]
    tuning = run(*NO_DROPOUT, "max_epoch=2", "log_every=1", *settings).set_up()
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


def one_step(run, *settings):
    tuning = run(*NO_DROPOUT, "max_epoch=1", "batch_size=24", *settings)
    return first_gradient(tuning), tuning


def test_a_gradient_is_clipped(run):
    free, _ = one_step(run)
    norm = math.sqrt(sum(float(g.square().sum()) for g in free.values()))
    clipped, _ = one_step(run, f"clip_grad_norm={norm / 4}")
    expected = {name: g / 4 for name, g in free.items()}
    torch.testing.assert_close(clipped, expected, rtol=1e-4, atol=1e-7)
    clipped, _ = one_step(run, "clip_grad_value=1e-3")
    torch.testing.assert_close(clipped, {name: g.clamp(-1e-3, 1e-3) for name, g in free.items()})


def test_dropout_depends_on_the_rank_and_the_batchs_number(run, monkeypatch):
    tuning = run().set_up()
    batch = tuning.batches()[0]
    batch["image"] = normalise(batch["image"])

    def loss(rank, number):
        monkeypatch.setattr("captioning.runtime.distributed.rank", lambda: rank)
        return tuning.step._forward(batch, number).loss.item()

    assert loss(0, 0) == loss(0, 0)
    assert len({loss(0, 0), loss(1, 0), loss(0, 1), loss(1, 1)}) == 4


def test_bf16_follows_float32(run):
    name = "text_decoder.bert.embeddings.word_embeddings.weight"
    full, mixed = (one_step(run, f"precision={p}")[0][name] for p in ("fp32", "bf16"))
    assert mixed.dtype == torch.float32 and not torch.equal(full, mixed)
    assert (full - mixed).norm() < 0.1 * full.norm()


@pytest.mark.slow
def test_compiled_parts_give_the_same_gradient(run, quick_compiler):
    eager, _ = one_step(run)
    compiled, tuning = one_step(run, "compile=true")
    parts = (tuning.captioner.visual_encoder, tuning.captioner.text_decoder)
    assert all(part._compiled_call_impl is not None for part in parts)
    assert quick_compiler.frame_count > 1
    torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-5)


def with_bleu(*values):
    given = [{} if value is None else {"Bleu_4": value} for value in values]
    return {epoch: {"CIDEr": 0.5, **bleu} for epoch, bleu in enumerate(given)}


def test_validation_bleu_lowers_the_rates_of_decoder_and_encoder(run, scored):
    scored.update(with_bleu(0.1, 0.3, 0.2, 0.3, 0.4, 0.2))
    plateau = ["lr_schedule=plateau", "lr_patience=0", "lr_decay=0.5", "metrics=[coco, length]"]
    rates = ["init_lr=1e-2", "encoder_lr=1e-4", "max_epoch=6", "log_every=1"]
    tuning = run("model=lstm", *CLASSIC, "prompt=''", *rates, *plateau).run()
    logged = [line["learning_rate"] for line in log_of(tuning.folder, "step")]
    expected = [1e-2 * share for share in (1, 1, 1, 0.5, 0.25, 0.25)]
    assert logged[::3] == pytest.approx(expected) and len(logged) == 18
    groups = [group["lr"] for group in tuning.step.optimizer.param_groups]
    assert groups == pytest.approx([2.5e-3, 2.5e-5])


def test_a_run_that_ended_early_is_left_as_it_is(run, scored, capsys):
    scored.update(with_bleu(0.3, None, 0.2, 0.4))
    settings = ["max_epoch=4", "metrics=[coco, length]", "lr_schedule=exponential"]
    first = run(*settings, "early_stopping=1").run()
    with unchanged(first.folder):
        run(*settings, "early_stopping=1", "log_every=2").run()
    ended = "stopped early, after 3 epochs: Bleu_4 was best 1 validations ago"
    shown = capsys.readouterr().err
    assert shown.count(ended) == 2 and "resuming" not in shown
    # With more patience it goes on.
    more = run(*settings, "early_stopping=2").run()
    assert "resuming from" in capsys.readouterr().err
    assert (more.folder / "checkpoint_03.pth").exists()


def test_a_classic_checkpoint_has_its_own_words(trained, scenes_config, tmp_path):
    best = trained(tmp_path / "run", "sat") / "checkpoint_best.pth"
    saved = torch.load(best, weights_only=True)
    # The training captions of this configuration would make another vocabulary.
    more = ["vocabulary_size=9", "encoder_weights=default"]
    config = load_config(scenes_config, [*CAPTIONERS["sat"], *more])
    captioner, line = captioner_from(config, str(best))
    assert captioner.tokenizer.words == saved["vocabulary"] and "every key matched" in line
    torch.testing.assert_close(captioner.state_dict(), saved["model"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["accumulation_steps=9"], "accumulation_steps is 9, but an epoch has only 3 batches"),
        (["model=lstm", *CLASSIC, "encoder_lr=0"], "encoder_weights is none and encoder_lr is 0"),
    ],
)
def test_what_cannot_be_trained_is_one_line(run, settings, line):
    with raises_line(UserError, line):
        run(*settings).run()
