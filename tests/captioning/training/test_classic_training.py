"""The classic captioners in a run: trained, saved with their words, resumed, captioning, scored."""

import json

import pytest
import torch

from captioning.config import load_config
from captioning.metrics.coco import Coco
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError
from tests.programs import unchanged
from tests.tiny import CLASSIC, log_of

GIVEN = [
    *(*CLASSIC, "image_size=32", "dropout=0.1", "max_epoch=2", "batch_size=8", "log_every=1"),
    *("prompt=''", "metrics=[length, facts]", "facts_file=scenes.json"),
]


@pytest.mark.parametrize(
    ("model", "more", "parts"),
    [
        pytest.param(
            *("rnn", ["objective={mle: 0.5, smile: 0.5}"], {"mle", "smile"}),
            marks=pytest.mark.slow,
        ),
        ("sat", ["objective=mle", "attention_penalty=0.5"], {"mle", "attention"}),
    ],
)
def test_a_run_of_each_kind_learns_and_its_checkpoint_captions(
    done, model, more, parts, scenes_config, run_program
):
    tuning = done(f"model={model}", *more)
    steps = log_of(tuning.folder, "step")
    assert len(steps) == 6 and steps[-1]["loss"] < steps[0]["loss"] and parts <= steps[0].keys()
    saved = torch.load(tuning.folder / "checkpoint_best.pth", weights_only=True)
    known = saved["vocabulary"]
    assert known == tuning.captioner.tokenizer.words
    call = ["--config", scenes_config, "--output_dir", tuning.folder, "--evaluate"]
    call += ["--eval_split", "test", "--device", "cpu", *GIVEN, f"model={model}", *more]
    assert run_program("captioning.train", *call).code == 0
    captions = json.loads((tuning.folder / "result" / "test.json").read_text())
    assert len(captions) == 7
    assert all(set(entry["caption"].split()) <= {*known} for entry in captions)


@pytest.mark.slow
def test_words_come_from_the_checkpoint_not_from_other_captions(done, scenes_config):
    tuning = done("model=lstm", "max_epoch=1", "objective=mle")
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


@pytest.mark.slow
def test_word_pieces_need_no_vocabulary_in_the_checkpoint(done, scenes):
    tuning = done("model=attn", "vocabulary=wordpiece", "max_epoch=1", "prompt='a picture of '")
    saved = torch.load(tuning.folder / "checkpoint_00.pth", weights_only=True)
    assert "vocabulary" not in saved
    pieces = len((scenes / "vocab.txt").read_text().split())
    assert saved["model"]["decoder.head.weight"].size(0) == pieces + 2


def test_the_encoder_has_its_rate_and_the_decoder_its_schedule(done):
    tuning = done(
        "model=lstm", "encoder_lr=1e-4", "lr_schedule=exponential", "lr_decay=0.5", "init_lr=1e-2"
    )
    rates = [group["lr"] for group in tuning.step.optimizer.param_groups]
    assert rates == pytest.approx([5e-3, 5e-5])
    logged = [line["learning_rate"] for line in log_of(tuning.folder, "step")]
    assert logged == pytest.approx([1e-2] * 3 + [5e-3] * 3)


def with_bleu(values):
    given = [{} if value is None else {"Bleu_4": value} for value in values]
    return {epoch: {"CIDEr": 0.5, **bleu} for epoch, bleu in enumerate(given)}


@pytest.mark.parametrize(
    ("more", "epochs", "rates"),
    [
        pytest.param(["early_stopping=2"], 4, [1, 1, 1, 1], marks=pytest.mark.slow),
        (["lr_schedule=plateau", "lr_patience=0", "lr_decay=0.5"], 6, [1, 1, 1, 0.5, 0.25, 0.25]),
    ],
)
def test_validation_bleu_lowers_the_rate_and_ends_the_run(done, scored, more, epochs, rates):
    scored.update(with_bleu([0.1, 0.3, 0.2, 0.3, 0.4, 0.2]))
    lr = ["lr_schedule=exponential", "lr_decay=1"]
    tuning = done(
        "model=lstm", "max_epoch=6", "init_lr=1.0e-3", "metrics=[coco, length]", *lr, *more
    )
    logged = [line["learning_rate"] for line in log_of(tuning.folder, "step")]
    assert logged[::3] == pytest.approx([rate * 1e-3 for rate in rates])
    assert len(logged) == 3 * epochs


GOES_BY_BLEU = [
    *("max_epoch=6", "metrics=[coco, length]", "early_stopping=1", "lr_schedule=exponential")
]


def test_a_run_that_ended_early_is_left_as_it_is(done, scored, capsys):
    scored.update(with_bleu([0.3, 0.2, 0.4]))
    first = done("model=lstm", *GOES_BY_BLEU)
    ended = "stopped early, after 2 epochs: Bleu_4 was best 1 validations ago"
    assert capsys.readouterr().err.count(ended) == 1
    (first.folder / "run.json").write_text("the record of the first run")
    with unchanged(first.folder):
        done("model=lstm", *GOES_BY_BLEU, "log_every=2")
    shown = capsys.readouterr().err
    assert shown.count(ended) == 1 and "resuming" not in shown
    # With more patience it goes on.
    more = done("model=lstm", *GOES_BY_BLEU, "early_stopping=2", "max_epoch=3")
    assert "resuming from" in capsys.readouterr().err
    assert (more.folder / "checkpoint_02.pth").exists()
    assert "the first run" not in (more.folder / "run.json").read_text()


@pytest.mark.slow
def test_a_validation_without_bleu_is_told(run, scored, capsys):
    scored.update(with_bleu([0.3, None, 0.2]))
    run("model=lstm", *GOES_BY_BLEU).run()
    shown = capsys.readouterr().err
    assert shown.count("early_stopping ignores this epoch, which has no Bleu_4") == 1
    assert "stopped early, after 3 epochs" in shown


@pytest.mark.parametrize("key", ["early_stopping=2", "lr_schedule=plateau"])
def test_a_run_that_goes_by_bleu_needs_it(run, monkeypatch, key):
    monkeypatch.setattr(Coco, "unavailable", lambda c: dict.fromkeys(c.metric_names, "no licence"))
    for metrics, reason in {
        "[coco, length]": "Bleu_4 cannot be computed: no licence; set monitor",
        "[length]": r"metrics is \['length'\], which does not include Bleu_4; set monitor to other",
    }.items():
        name = key.partition("=")[0]
        with pytest.raises(UserError, match=f"{name} depends on Bleu_4, but {reason}"):
            run("model=lstm", f"metrics={metrics}", key).run()
    run("model=lstm", "metrics=[length]", key, "monitor=-cap_len").set_up()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("encoder_lr=0", "encoder_weights is none and encoder_lr is 0: the image encoder would ke"),
        ("image_size=8 encoder=squeezenet1_1", "image_size is 8, too small for squeezenet1"),
        ("image_size=32 batch_size=1", "batch_size is 1, but must be 2 or more: this captioner ha"),
        ("max_length=1 min_length=1", "max_length is 1; with this prompt, of 1 tok.* or more"),
    ],
)
def test_what_cannot_be_trained_is_one_line(run, more, message):
    with pytest.raises(UserError, match=message) as error:
        run("model=lstm", *more.split()).run()
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_under_compile_the_loop_over_words_stays_as_it_is(run, scored, quick_compiler):
    small = ["encoder=squeezenet1_1", "captions_per_image=1", "dropout=0"]
    tuning = run("model=sat", "compile=true", "max_epoch=1", *small).run()
    assert tuning.captioner.encoder._compiled_call_impl is not None
    assert tuning.captioner.decoder._compiled_call_impl is None
