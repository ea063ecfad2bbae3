"""A split is scored by the configured metrics. Missing requirements are reported first."""

import json

import pytest
import torch

from captioning.config import load_config
from captioning.metrics import diversity
from captioning.runtime.errors import UserError
from captioning.training import validation
from captioning.training.validation import SplitEvaluation

RESULTS = [{"image_id": 7, "caption": "a red ball"}, {"image_id": 8, "caption": "a ball"}]


@pytest.fixture
def evaluation(tmp_path, monkeypatch):
    """Return a function that sets up the evaluation of two images with given captions."""
    rows = [{"image": f"{n}.png", "image_id": n, "caption": ["a ball"]} for n in (7, 8)]
    (tmp_path / "val.json").write_text(json.dumps(rows))
    config = tmp_path / "some.yaml"
    config.write_text(f"image_root: {tmp_path}\nann_root: {tmp_path}\ndataset: custom\n")
    monkeypatch.setattr(validation, "caption_images", lambda *_: RESULTS)

    def make(*overrides):
        chosen = load_config(config, ["val_file=val.json", *overrides])
        return SplitEvaluation(chosen, "val", tmp_path / "run", torch.device("cpu"))

    return make


def test_the_chosen_metrics_are_computed_and_read_back(evaluation, tmp_path):
    assert evaluation("metrics=[length]").run(None, "val_epoch00") == {"cap_len": 2.5}
    folder = tmp_path / "run" / "result" / "val_epoch00"
    written = json.loads((folder / "metrics.json").read_text())["metrics"]
    assert written == {"cap_len": {"value": 2.5, "low": 2.0, "high": 3.0, "n": 2}}
    lines = [json.loads(line) for line in (folder / "per_caption.jsonl").open()]
    assert lines == [{**result, "cap_len": n} for result, n in zip(RESULTS, (3, 2))]


def test_what_is_missing_is_said_before_captions_are_made(
    evaluation, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(diversity.Length, "unavailable", lambda _: {"cap_len": "no ruler"})
    evaluation("metrics=[length]")
    assert "cap_len will be skipped: no ruler" in capsys.readouterr().err
    with pytest.raises(UserError, match="facts needs facts_file"):
        evaluation("metrics=[length, facts]")
    with pytest.raises(UserError, match=f"{tmp_path}/facts.json"):  # relative to ann_root
        evaluation("metrics=[length, facts]", "facts_file=facts.json")


def test_models_are_told_of_images_device_and_pool(evaluation, tmp_path):
    (tmp_path / "pool.txt").write_text("7.png")
    (tmp_path / "train.json").write_text('[{"image": "1.png", "caption": "a", "image_id": 1}]')
    given = ("metrics=[retrieval]", "train_file=train.json", "clip_model=some/model")
    for pool, name in ((tmp_path / "pool.txt", "7.png"), ("train", "1.png")):
        [evaluator] = evaluation(*given, f"pool={pool}").evaluators
        assert evaluator.files == [tmp_path / name]
    settings = evaluator.settings
    assert settings.images == {7: tmp_path / "7.png", 8: tmp_path / "8.png"}
    assert evaluator.config.clip_model == "some/model" and settings.device == "cpu"
    with pytest.raises(UserError, match="pool: test holds no images: give a folder"):
        evaluation(*given, "val_file=", "train_file=val.json", "split={val: 0.5}", "pool=test")
