"""The classic captioners in a run: trained, saved with their words, resumed, captioning, scored."""

import json

import pytest
import torch

from baselines import configured
from baselines.feature_cache import FeatureCache
from captioning import train
from captioning.config import load_config
from captioning.metrics.coco import Coco
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError
from tests.tiny_run import log_of

GIVEN = [
    *("encoder=shufflenet_v2_x0_5", "encoder_weights=none", "encoder_lr=1e-3", "image_size=64"),
    *("embed_dim=16", "hidden_dim=16", "attention_dim=8", "dropout=0.1", "max_epoch=2"),
    *("batch_size=8", "log_every=1", "prompt=''", "metrics=[length, facts]"),
    "facts_file=scenes.json",
]


@pytest.mark.parametrize("model", ["rnn", "sat"])
def test_a_run_of_each_kind_learns_and_its_checkpoint_captions(run, model, scenes_config):
    tuning = run(f"model={model}", "objective={mle: 0.5, smile: 0.5}")
    tuning.run()
    steps = log_of(tuning.folder, "step")
    assert len(steps) == 6 and steps[-1]["loss"] < steps[0]["loss"]
    saved = torch.load(tuning.folder / "checkpoint_best.pth", weights_only=True)
    assert saved["vocabulary"] == tuning.captioner.tokenizer.words
    evaluated = train.main(
        [
            *("--config", str(scenes_config), "--output_dir", str(tuning.folder), "--evaluate"),
            *("--eval_split", "test", "--device", "cpu", *GIVEN, f"model={model}"),
        ]
    )
    assert evaluated == 0
    captions = json.loads((tuning.folder / "result" / "test.json").read_text())
    known = {*saved["vocabulary"]}
    assert len(captions) == 7
    assert all(set(entry["caption"].split()) <= known for entry in captions)


def stopped_after_an_epoch(make):
    """The run that `make` makes, after it has gone on to its end."""
    interrupted = make()
    interrupted.config = interrupted.config.model_copy(update={"max_epoch": 1})
    interrupted.run()
    again = make()
    assert again.progress.epoch == 1
    again.run()
    return again


def test_a_resumed_run_ends_as_the_undisturbed_one(run, monkeypatch):
    more = ["teacher_forcing=linear", "teacher_forcing_k=2", "attention_penalty=0.5"]
    run("model=sat", *more, folder="whole").run()
    again = stopped_after_an_epoch(lambda: run("model=sat", *more, folder="resumed"))
    whole, resumed = (
        torch.load(again.folder.parent / name / "checkpoint_01.pth", weights_only=True)
        for name in ("whole", "resumed")
    )
    for key, value in whole["model"].items():
        assert torch.equal(value, resumed["model"][key]), key
    assert {"loss", "mle", "attention"} <= log_of(again.folder, "epoch")[-1].keys()


def test_kept_features_change_nothing_of_a_resumed_run(run, monkeypatch, tmp_path):
    """The resumed run's are looked up where the other computed them; made-up weights stand in."""
    monkeypatch.setattr("baselines.configured.build", with_frozen_encoder)
    kept = tmp_path / "features"
    more = ["encoder_lr=0", "augmentation=none", "encoder_norm=true"]
    run("model=lstm", *more, folder="plain").run()
    more.append(f"encoder_features={kept}")
    run("model=lstm", *more, folder="whole").run()
    assert len(list(kept.glob("*/*.safetensors"))) == 24
    again = stopped_after_an_epoch(lambda: run("model=lstm", *more, folder="resumed"))
    plain, whole, resumed = (
        torch.load(again.folder.parent / name / "checkpoint_01.pth", weights_only=True)["model"]
        for name in ("plain", "whole", "resumed")
    )
    for key, value in whole.items():
        assert torch.equal(value, resumed[key]), key
        torch.testing.assert_close(value, plain[key], rtol=1e-2, atol=1e-3)


def with_frozen_encoder(config, context, build=configured.build):
    """What a configuration with weights for its encoder would make, but with made-up ones."""
    weights = config.model_copy(update={"encoder_lr": 1e-3})
    captioner = build(weights.model_copy(update={"encoder_features": None}), context)
    encoder = captioner.encoder
    encoder.finetune, captioner.encoder_lr = False, 0.0
    encoder.network.requires_grad_(False)
    if config.encoder_features:
        encoder.cache = FeatureCache(config.encoder_features, encoder.network, config.encoder)
    return captioner


def test_words_come_from_the_checkpoint_not_from_other_captions(run, scenes_config):
    tuning = run("model=lstm", "max_epoch=1", "objective=mle")
    tuning.run()
    best = str(tuning.folder / "checkpoint_best.pth")
    # The training captions of this configuration would make a vocabulary of its own.
    other = load_config(
        scenes_config, [*GIVEN, "model=lstm", "vocabulary_size=9", "encoder_weights=default"]
    )
    captioner, line = captioner_from(other, best)
    assert captioner.tokenizer.words == tuning.captioner.tokenizer.words
    assert "every key matched" in line
    for key, value in captioner.state_dict().items():
        assert torch.equal(value, tuning.captioner.state_dict()[key])


def test_a_vocabulary_of_word_pieces(run, scenes):
    tuning = run("model=attn", "vocabulary=wordpiece", "max_epoch=1", "prompt='a picture of '")
    tuning.run()
    saved = torch.load(tuning.folder / "checkpoint_00.pth", weights_only=True)
    assert "vocabulary" not in saved
    pieces = len((scenes / "vocab.txt").read_text().split())
    assert saved["model"]["decoder.head.weight"].size(0) == pieces + 2


def test_the_encoder_has_its_rate_and_the_decoder_its_schedule(run):
    tuning = run(
        "model=lstm", "encoder_lr=1e-4", "lr_schedule=exponential", "lr_decay=0.5", "init_lr=1e-2"
    )
    tuning.run()
    rates = [group["lr"] for group in tuning.optimizer.param_groups]
    assert rates == pytest.approx([5e-3, 5e-5])
    logged = [line["learning_rate"] for line in log_of(tuning.folder, "step")]
    assert logged == pytest.approx([1e-2] * 3 + [5e-3] * 3)


def test_half_of_the_words_are_its_own_in_the_middle(run):
    """The third of four epochs has the middle of half of them."""
    forcing = ["teacher_forcing=inverse_sigmoid", "teacher_forcing_middle=0.5", "max_epoch=4"]
    captioner = run("model=lstm", *forcing).captioner
    seen = []
    for epoch in range(4):
        captioner.begin_epoch(epoch)
        seen.append(captioner.decoder.teacher_forcing)
    assert seen[2] == pytest.approx(0.5) and sorted(seen, reverse=True) == seen


def test_gradients_are_clipped_by_value(run, monkeypatch):
    tuning = run("model=lstm", "clip_grad_value=1e-3")
    largest = []
    step = tuning.optimizer.step

    def look(*arguments, **named):
        parameters = [p for group in tuning.optimizer.param_groups for p in group["params"]]
        largest.append(max(p.grad.abs().max().item() for p in parameters if p.grad is not None))
        return step(*arguments, **named)

    monkeypatch.setattr(tuning.optimizer, "step", look)
    tuning._train_epoch(0)
    assert max(largest) == pytest.approx(1e-3)


def with_bleu(values):
    return {
        epoch: {"CIDEr": 0.5, **({} if value is None else {"Bleu_4": value})}
        for epoch, value in enumerate(values)
    }


@pytest.mark.parametrize(
    ("more", "epochs", "rates"),
    [
        (["early_stopping=2"], 4, [1, 1, 1, 1]),
        (["lr_schedule=plateau", "lr_patience=0", "lr_decay=0.5"], 6, [1, 1, 1, 0.5, 0.25, 0.25]),
    ],
)
def test_validation_bleu_lowers_the_rate_and_ends_the_run(run, scored, more, epochs, rates):
    scored.update(with_bleu([0.1, 0.3, 0.2, 0.3, 0.4, 0.2]))
    lr = ["lr_schedule=exponential", "lr_decay=1"]
    tuning = run(
        "model=lstm", "max_epoch=6", "init_lr=1.0e-3", "metrics=[coco, length]", *lr, *more
    )
    tuning.run()
    logged = [line["learning_rate"] for line in log_of(tuning.folder, "step")]
    assert logged[::3] == pytest.approx([rate * 1e-3 for rate in rates])
    assert len(logged) == 3 * epochs


GOES_BY_BLEU = [
    *("max_epoch=6", "metrics=[coco, length]", "early_stopping=1", "lr_schedule=exponential")
]


def test_a_run_that_ended_early_is_left_as_it_is(run, scored, capsys):
    scored.update(with_bleu([0.3, 0.2, 0.4]))
    first = run("model=lstm", *GOES_BY_BLEU)
    first.run()
    ended = "stopped early, after 2 epochs: Bleu_4 was best 1 validations ago"
    assert capsys.readouterr().err.count(ended) == 1
    (first.folder / "run.json").write_text("the record of the first run")
    before = {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()}
    run("model=lstm", *GOES_BY_BLEU, "log_every=2").run()
    shown = capsys.readouterr().err
    assert shown.count(ended) == 1 and "resuming" not in shown
    after = {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()}
    assert before == after
    more = run("model=lstm", *GOES_BY_BLEU, "early_stopping=2", "max_epoch=3")
    more.run()  # with more patience it goes on
    assert "resuming from" in capsys.readouterr().err
    assert (more.folder / "checkpoint_02.pth").exists()
    assert "the first run" not in (more.folder / "run.json").read_text()


def test_a_validation_without_bleu_is_told(run, scored, capsys):
    scored.update(with_bleu([0.3, None, 0.2]))
    run("model=lstm", *GOES_BY_BLEU).run()
    shown = capsys.readouterr().err
    assert shown.count("early_stopping ignores this epoch, which has no Bleu_4") == 1
    assert "stopped early, after 3 epochs" in shown


@pytest.mark.parametrize("key", ["early_stopping=2", "lr_schedule=plateau"])
def test_a_run_that_goes_by_bleu_needs_it(run, monkeypatch, key):
    monkeypatch.setattr(Coco, "unavailable", lambda self: dict.fromkeys(self.names, "no licence"))
    goes_by = f"{key.split('=')[0]} depends on"
    reason = "Bleu_4, but Bleu_4 cannot be computed: no licence; set monitor"
    with pytest.raises(UserError, match=f"{goes_by} {reason}"):
        run("model=lstm", "metrics=[coco, length]", key)
    reason = (
        r"Bleu_4, but metrics is \['length'\], which does not include Bleu_4; set monitor to other"
    )
    with pytest.raises(UserError, match=f"{goes_by} {reason}"):
        run("model=lstm", "metrics=[length]", key)
    run("model=lstm", "metrics=[length]", key, "monitor=-cap_len")
    run("model=lstm", "metrics=[coco, length]", folder="other")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["encoder_lr=0"],
            "encoder_weights is none and encoder_lr is 0: the image encoder would ke",
        ),
        (["image_size=8", "encoder=squeezenet1_1"], "image_size is 8, too small for squeezenet1"),
        (
            ["image_size=32", "batch_size=1"],
            "batch_size is 1, but must be 2 or more: this captioner has a batch norm",
        ),
        (["max_length=1", "min_length=1"], "max_length is 1; with this prompt, of 1 tok.* or more"),
    ],
)
def test_what_cannot_be_trained_is_one_line(run, more, message):
    with pytest.raises(UserError, match=message) as error:
        run("model=lstm", *more)
    assert "\n" not in str(error.value)


def test_a_frozen_encoder_may_have_come_from_a_checkpoint(run):
    tuning = run("model=lstm", "max_epoch=1", "objective=mle", folder="first")
    tuning.run()
    best = tuning.folder / "checkpoint_best.pth"
    frozen = run("model=lstm", "encoder_lr=0", f"pretrained={best}", "max_epoch=1", "batch_size=1")
    frozen.close()


@pytest.mark.parametrize(("model", "precision"), [("lstm", "bf16"), ("sat", "fp16")])
def test_in_16_bits_on_any_cpu(run, model, precision):
    """oneDNN's LSTM ends in an error where the CPU lacks them."""
    run(f"model={model}", f"precision={precision}", "max_epoch=1").run()


@pytest.mark.slow
def test_under_compile_the_loop_over_words_stays_as_it_is(run, quick_compiler):
    tuning = run("model=sat", "compile=true", "max_epoch=1", "dropout=0")
    assert tuning.captioner.encoder._compiled_call_impl is not None
    assert tuning.captioner.decoder._compiled_call_impl is None
    tuning.run()
