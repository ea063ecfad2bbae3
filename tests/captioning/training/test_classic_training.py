"""The classic captioners in a run: trained, saved with their words, resumed, captioning, scored."""

import json

import pytest
import torch

from captioning.config import load_config
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError
from tests.programs import raises_line, run_program, unchanged
from tests.tiny import CLASSIC, log_of

GIVEN = [
    *(*CLASSIC, "image_size=32", "dropout=0.1", "max_epoch=2", "batch_size=8", "log_every=1"),
    *("prompt=''", "metrics=[length, facts]", "facts_file=scenes.json"),
]


def test_a_run_learns_and_its_checkpoint_captions_with_its_own_words(run, scenes_config):
    settings = ["model=sat", "objective=mle", "attention_penalty=0.5"]
    tuning = run(*settings).run()
    steps = log_of(tuning.folder, "step")
    assert len(steps) == 6 and steps[-1]["loss"] < steps[0]["loss"]
    assert {"mle", "attention"} <= steps[0].keys()
    best = tuning.folder / "checkpoint_best.pth"
    known = torch.load(best, weights_only=True)["vocabulary"]
    # The training captions of this configuration would make another vocabulary.
    more = ["vocabulary_size=9", "encoder_weights=default"]
    other = load_config(scenes_config, [*GIVEN, *settings, *more])
    captioner, line = captioner_from(other, str(best))
    assert captioner.tokenizer.words == known and "every key matched" in line
    expected = tuning.captioner.state_dict()
    torch.testing.assert_close(captioner.state_dict(), expected, rtol=0, atol=0)
    call = ["--config", scenes_config, "--output_dir", tuning.folder, "--evaluate"]
    assert run_program("captioning.train", *call, *GIVEN, *settings).code == 0
    captions = json.loads((tuning.folder / "result/val.json").read_text())
    assert len(captions) == 5
    assert all(set(entry["caption"].split()) <= {*known} for entry in captions)


def with_bleu(*values):
    given = [{} if value is None else {"Bleu_4": value} for value in values]
    return {epoch: {"CIDEr": 0.5, **bleu} for epoch, bleu in enumerate(given)}


def test_validation_bleu_lowers_the_rates_of_decoder_and_encoder(run, scored):
    scored.update(with_bleu(0.1, 0.3, 0.2, 0.3, 0.4, 0.2))
    plateau = ["lr_schedule=plateau", "lr_patience=0", "lr_decay=0.5"]
    rates = ["init_lr=1.0e-2", "encoder_lr=1e-4", "max_epoch=6", "metrics=[coco, length]"]
    tuning = run("model=lstm", *rates, *plateau).run()
    logged = [line["learning_rate"] for line in log_of(tuning.folder, "step")]
    expected = [1e-2 * share for share in (1, 1, 1, 0.5, 0.25, 0.25)]
    assert logged[::3] == pytest.approx(expected) and len(logged) == 18
    groups = [group["lr"] for group in tuning.step.optimizer.param_groups]
    assert groups == pytest.approx([2.5e-3, 2.5e-5])


def test_a_run_that_ended_early_is_left_as_it_is(run, scored, capsys):
    scored.update(with_bleu(0.3, None, 0.2, 0.4))
    settings = ["model=lstm", "max_epoch=4", "metrics=[coco, length]", "lr_schedule=exponential"]
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


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("encoder_lr=0", "encoder_weights is none and encoder_lr is 0: the image encoder would ke"),
        ("max_length=1 min_length=1", "max_length is 1; with this prompt, of 1 tok"),
    ],
)
def test_what_cannot_be_trained_is_one_line(run, more, message):
    with raises_line(UserError, message):
        run("model=lstm", *more.split()).run()
