"""Fine-tuning on a small data set: what it writes, resumes, weights and refuses."""

import json
import math

import pytest
import torch

from captioning import recipe
from captioning.config import load_config
from captioning.errors import UserError
from captioning.recipe import FineTuning

CPU = torch.device("cpu")
NO_DROPOUT = ["med_config.hidden_dropout_prob=0", "med_config.attention_probs_dropout_prob=0"]


@pytest.fixture
def run(scenes_config, tmp_path):
    """Return a function that sets up a run with overrides, in a folder of the test."""

    def make(*overrides, folder="run"):
        flags = {"output_dir": str(tmp_path / folder)}
        return FineTuning(load_config(scenes_config, overrides, flags), CPU)

    return make


@pytest.fixture
def scored(monkeypatch):
    """Scores by epoch in place of captions and Java, in a dict that the test may fill."""
    quality = {}

    def run(self, captioner, name):
        scores = {"CIDEr": quality.get(int(name[-2:]), 0.0), "Bleu_4": 0.0}
        path = self.folder / "result" / name / "metrics.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"metrics": {k: {"value": v} for k, v in scores.items()}}))
        return scores

    monkeypatch.setattr(recipe.Evaluation, "run", run)
    return quality


def lines(folder, event):
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in log if line["event"] == event]


def test_a_run_learns_and_leaves_everything(run):
    tuning = run("log_every=1", "max_epoch=2", "init_lr=3e-3")
    tuning.run()
    folder = tuning.folder
    steps = lines(folder, "step")
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[-1]["loss"] < 0.9 * steps[0]["loss"]
    for line in steps:
        assert line["loss"] == pytest.approx(0.5 * line["mle"] + 0.5 * line["smile"])
    rates = [line["learning_rate"] for line in steps]
    assert rates == pytest.approx([3e-3] * 3 + [1.5e-3] * 3)
    assert len(lines(folder, "epoch")) == len(lines(folder, "val")) == 2
    assert {path.name for path in folder.iterdir()} == {
        *("checkpoint_00.pth", "checkpoint_01.pth", "checkpoint_best.pth"),
        *("config.yaml", "run.json", "log.jsonl", "tensorboard", "result"),
    }
    saved = torch.load(folder / "checkpoint_01.pth", weights_only=True)
    assert {"model", "optimizer", "config", "epoch"} <= saved.keys()
    assert saved["config"]["objective"] == {"mle": 0.5, "smile": 0.5}
    captions = json.loads((folder / "result" / "val_epoch01.json").read_text())
    assert [set(entry) for entry in captions] == [{"image_id", "caption"}] * 5
    record = json.loads((folder / "run.json").read_text())
    assert torch.__version__.startswith(record["versions"]["torch"]) and record["processes"] == 1
    assert load_config(folder / "config.yaml") == tuning.config
    assert any((folder / "tensorboard").iterdir())


def test_an_interrupted_run_ends_as_the_undisturbed_one(run, scored, monkeypatch):
    run(folder="whole").run()
    interrupted = run(folder="resumed")
    train = interrupted._train_epoch

    def stop(epoch):
        if epoch == 2:
            raise KeyboardInterrupt
        train(epoch)

    interrupted._train_epoch = stop
    with pytest.raises(KeyboardInterrupt):
        interrupted.run()
    resumed = run(folder="resumed")
    assert resumed.first_epoch == 2
    resumed.run()
    whole, again = (
        torch.load(resumed.folder.parent / name / "checkpoint_02.pth")
        for name in ("whole", "resumed")
    )
    for part in ("model", "optimizer"):
        torch.testing.assert_close(whole[part], again[part], rtol=0, atol=0)


def test_the_best_epoch_is_remembered_over_a_resume(run, scored):
    scored.update({0: 0.3, 1: 0.9, 2: 0.5})
    first = run("max_epoch=2")
    first.run()
    second = run("max_epoch=3")
    second.run()
    assert torch.load(second.folder / "checkpoint_best.pth")["epoch"] == 1


def test_an_epoch_whose_scores_were_lost_is_scored_on_resume(run, scored, monkeypatch):
    tuning = run("max_epoch=1")
    with monkeypatch.context() as patch, pytest.raises(UserError):
        patch.setattr(recipe.Evaluation, "run", lambda *_: (_ for _ in ()).throw(UserError("Java")))
        tuning.run()
    assert not (tuning.folder / "checkpoint_best.pth").exists()
    run("max_epoch=1").run()
    assert torch.load(tuning.folder / "checkpoint_best.pth")["epoch"] == 0


def test_resume_says_what_changed_and_refuses_another_model(run, scored, capsys):
    run("max_epoch=1").run()
    run("max_epoch=1", "init_lr=5e-4")
    assert "init_lr was 0.001 when the run stopped, is 0.0005" in capsys.readouterr().err
    with pytest.raises(UserError, match="is of another model than the configuration's"):
        run("vit.depth=2")
    assert run("vit.depth=2", "resume=never").first_epoch == 0


def first_gradient(tuning):
    """The gradient at the first optimiser step, as the optimiser would see it."""
    found = {}

    def keep(*_, **__):
        found.update({n: p.grad.clone() for n, p in tuning.captioner.named_parameters()})

    tuning.optimizer.register_step_pre_hook(keep)
    tuning._train_epoch(0)
    return found


def one_step(run, **settings):
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return first_gradient(run(*NO_DROPOUT, "max_epoch=1", "resume=never", *overrides))


def test_accumulated_batches_give_the_gradient_of_the_joined_batch(run, scored):
    """Batches of unlike numbers of tokens: a mean of their means would differ."""
    joined = one_step(run, batch_size=24)
    torch.testing.assert_close(
        one_step(run, batch_size=4, accumulation_steps=6), joined, rtol=1e-4, atol=1e-6
    )


def test_a_gradient_is_clipped_and_its_norm_logged(run, scored):
    settings = {"batch_size": 24, "log_every": 1}
    free = one_step(run, **settings)
    norm = math.sqrt(sum(float(g.square().sum()) for g in free.values()))
    clipped = one_step(run, clip_grad_norm=norm / 4, **settings)
    expected = {name: g / 4 for name, g in free.items()}
    torch.testing.assert_close(clipped, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_follows_float32(run, scored, precision):
    full = one_step(run, batch_size=24)
    mixed = one_step(run, batch_size=24, precision=precision)
    name = "text_decoder.bert.embeddings.word_embeddings.weight"
    assert mixed[name].dtype == torch.float32
    cosine = torch.cosine_similarity(full[name].flatten(), mixed[name].flatten(), dim=0)
    assert 0.995 < cosine < 1 and not torch.equal(full[name], mixed[name])


@pytest.mark.slow
def test_compiled_parts_give_the_same_gradient(run, scored):
    eager = one_step(run, batch_size=24)
    compiled = one_step(run, batch_size=24, compile="true")
    torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-5)


def test_a_loss_that_is_not_finite_stops_before_the_weights_change(run, scored):
    tuning = run("max_epoch=1")
    tuning.captioner.text_decoder.cls["predictions"].bias.data[3] = float("nan")
    before = tuning.captioner.visual_encoder.cls_token.clone()
    with pytest.raises(UserError, match=r"not finite at step 1 \(rank 0 had images") as error:
        tuning.run()
    assert "\n" not in str(error.value)
    assert torch.equal(tuning.captioner.visual_encoder.cls_token, before)
    assert not list(tuning.folder.glob("checkpoint_*"))


def test_too_few_batches_to_accumulate_is_one_line(run):
    with pytest.raises(UserError, match="accumulation_steps is 9, but an epoch has only 3 batches"):
        run("accumulation_steps=9")
    with pytest.raises(UserError, match="batch_size"):
        run("batch_size=25")
