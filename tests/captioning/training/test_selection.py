"""Which epoch of a run is selected, recorded and logged; what metrics of a split get and lack."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from captioning.config import load_config
from captioning.metrics.coco import Coco
from captioning.models import checkpoints
from captioning.models.build import load_trained
from captioning.runtime.errors import UserError
from captioning.training.selection import read_selection
from captioning.training.validation import SplitEvaluation, Validation
from tests.programs import raises_line
from tests.tiny import log_of

ALL = "keep_checkpoints=all"
GIVEN = ["max_epoch=3", "metrics=[coco, length]"]


@pytest.fixture(autouse=True)
def scores(scored):
    """As in a published log of SMILE's original code: the sum of the first two falls."""
    scored[0] = {"CIDEr": 0.101, "Bleu_4": 0.066, "cap_len": 14.2}
    scored[1] = {"CIDEr": 0.080, "Bleu_4": 0.055, "cap_len": 18.9}
    scored[2] = {"CIDEr": 0.062, "Bleu_4": 0.043, "cap_len": 22.1}


def best_of(folder):
    """Return the epoch of the best checkpoint, which the record has to name, too."""
    epoch = torch.load(folder / checkpoints.BEST)["epoch"]
    assert read_selection(folder).epoch == epoch
    return epoch


@pytest.mark.parametrize(
    ("overrides", "select"),
    [
        (["objective=mle"], "CIDEr + Bleu_4"),
        (["objective=mle", "metrics=[length]"], "last"),
        (["objective={mle: 0.01, smile: 0.99}"], "last"),
        (["objective=smile", "select=CIDEr - cap_len"], "CIDEr - cap_len"),
        (["objective=mle", "select=last"], "last"),
    ],
)
def test_select_is_chosen_by_the_objective_unless_it_is_named(run, overrides, select):
    folder = run(*overrides).set_up().folder
    assert load_config(folder / "config.yaml").select == select


def test_of_equals_and_without_scores_the_latest_is_kept(tmp_path, monkeypatch):
    values = {0: (0.2, 0.5), 2: (0.5, 0.2), 3: (math.nan, 0.9), 4: (0.1, 0.6)}
    scores = {e: {"Bleu_4": bleu, "CIDEr": cider} for e, (bleu, cider) in values.items()}
    monkeypatch.setattr(checkpoints, "weights_of", lambda folder, epoch: True)
    monkeypatch.setattr(checkpoints, "keep_as_best", lambda folder, epoch: None)

    def selected(select, epochs):
        validation = Validation.__new__(Validation)
        validation.folder, validation.config = tmp_path, SimpleNamespace(select=select)
        validation.validations = {e: scores[e] for e in scores if e < epochs}
        validation.keep_best(epochs)
        return read_selection(tmp_path).epoch

    assert [selected("CIDEr + Bleu_4", epochs) for epochs in range(1, 6)] == [0, 0, 2, 2, 4]
    assert [selected("CIDEr", epochs) for epochs in range(1, 6)] == [0, 0, 0, 3, 3]
    assert [selected(select, 5) for select in ("-CIDEr", "METEOR", "last")] == [2, 4, 4]


def test_what_was_selected_is_told_recorded_and_logged(run, capsys):
    folder = run("objective=mle").run().folder
    assert capsys.readouterr().err.splitlines()[-4:] == [
        f"selected: epoch 1, by CIDEr + Bleu_4, kept as {folder / checkpoints.BEST}",
        "  epoch 1: 0.167, CIDEr 0.101, BLEU-4 0.066, Cap. Len. 14.20  (selected)",
        "  epoch 2: 0.135, CIDEr 0.080, BLEU-4 0.055, Cap. Len. 18.90",
        "  epoch 3: 0.105, CIDEr 0.062, BLEU-4 0.043, Cap. Len. 22.10",
    ]
    record = json.loads((folder / "selected.json").read_text())
    assert [each["value"] for each in record.pop("epochs")] == pytest.approx([0.167, 0.135, 0.105])
    assert record == {"select": "CIDEr + Bleu_4", "epoch": 0}
    assert [line["CIDEr"] for line in log_of(folder, "val")] == [0.101, 0.08, 0.062]


def test_metrics_that_cannot_be_had_are_one_line_at_the_start(run, monkeypatch, capsys):
    """By default the last epoch is selected."""
    monkeypatch.setattr(Coco, "unavailable", lambda c: dict.fromkeys(c.metric_names, "no licence"))
    for setting, named in {
        "select=CIDEr + PPL": "select is CIDEr + PPL, but ",
        "early_stopping=2": "monitor is Bleu_4, but ",
        "lr_schedule=plateau": "monitor is Bleu_4, but ",
    }.items():
        with raises_line(UserError, named, "cannot be computed: no licence; set "):
            run(setting).run()
        with raises_line(UserError, named, "metrics is ['length'], which does not include"):
            run(setting, "metrics=[length]").run()
    folder = run("objective=mle").set_up().folder
    assert load_config(folder / "config.yaml").select == "last"
    line = "the last epoch will be selected, not the best by CIDEr + Bleu_4: CIDEr cannot be comp"
    assert line in capsys.readouterr().err


def test_every_epochs_weights_are_kept_load_anywhere_and_may_be_selected_later(run, capsys):
    folder = run("objective=smile", ALL).run().folder
    assert [path.stem for path in checkpoints.saved(folder)] == ["checkpoint_01", "checkpoint_02"]
    for epoch in range(3):
        path = checkpoints.weights_path(folder, epoch)
        checkpoints.check_whole(path)
        content = torch.load(path, weights_only=True)
        assert content["epoch"] == epoch and not {"optimizer", "scaler"} & content.keys()
        config, captioner = load_trained(str(path), None, torch.device("cpu"))
        assert config == load_config(folder / "config.yaml")
        weights = [captioner.state_dict()]
        if epoch:
            weights.append(torch.load(checkpoints.epoch_path(folder, epoch))["model"])
        for found in weights:
            torch.testing.assert_close(found, content["model"], rtol=0, atol=0)
    assert best_of(folder) == 2
    for select, epoch in (("CIDEr", 0), ("last", 2)):
        run("objective=smile", ALL, f"select={select}").run()
        assert best_of(folder) == epoch
        assert f"selected: epoch {epoch + 1}, " in capsys.readouterr().err


def test_an_epoch_whose_weights_are_gone_cannot_be_taken(run, capsys):
    """A resumed run keeps its `select`, and remembers the best epoch."""
    settings = ["objective=smile", "lr_schedule=exponential"]
    folder = run(*settings, "select=-cap_len", "max_epoch=2").run().folder
    run(*settings).run()
    assert best_of(folder) == 0
    run(*settings, "select=cap_len").run()
    assert best_of(folder) == 2
    run(*settings, "select=CIDEr").run()
    shown = capsys.readouterr().err
    assert "epoch 1 is best by select: CIDEr, but its weights were not kept (keep_check" in shown
    assert best_of(folder) == 1  # the next best


def test_no_epoch_is_done_before_its_weights_are_kept(run, monkeypatch):
    """Otherwise a run that is killed between the two would never write them."""
    tuning, save = run(ALL), torch.save

    def refuse(content, file):
        if "optimizer" not in content:
            raise OSError(28, "No space left on device")
        save(content, file)

    monkeypatch.setattr(torch, "save", refuse)
    with raises_line(UserError, "weights_00.pth: No space left on device", start="cannot write"):
        tuning.run()
    assert checkpoints.saved(tuning.folder) == []


def test_metrics_know_images_and_pool_and_say_what_is_missing_before_captions_are_made(
    scenes, scenes_config, tmp_path, capsys, no_java
):
    def evaluation(*overrides):
        config = load_config(scenes_config, overrides)
        return SplitEvaluation(config, "val", scenes, torch.device("cpu"))

    (tmp_path / "pool.txt").write_text("7.png")
    given = ("metrics=[retrieval]", "clip_model=some/model")
    for pool, count in ((tmp_path / "pool.txt", 1), ("train", 24), ("val", 5)):
        [evaluator] = evaluation(*given, f"pool={pool}").evaluators
        assert len(evaluator.pool_files) == count
    settings = evaluator.settings
    assert [*settings.images.values()] == evaluator.pool_files and evaluator.pool_files[0].exists()
    assert evaluator.config.clip_model == "some/model" and settings.device == "cpu"
    with raises_line(UserError, "pool: test holds no images: give a folder"):
        evaluation(*given, "val_file=", "test_file=", "split={val: 0.5}", "pool=test")
    capsys.readouterr()
    evaluation("metrics=[coco]")
    assert "METEOR will be skipped: no Java" in capsys.readouterr().err
    for facts, line in (([], "facts needs facts_file"), (["facts_file=a"], f"{scenes}/a: no such")):
        with raises_line(UserError, line):
            evaluation("metrics=[length, facts]", *facts)
