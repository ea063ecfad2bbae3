"""Cards of exported weights, read by the Hub's own parser."""

import json

import pytest
import torch
from huggingface_hub import ModelCard

from adapters.card import MARK, is_repository
from BLIP.convert import hf_config, settings_of
from tests.programs import run_program

METRICS = {"CIDEr": (0.9, 0.8, 1.0, 5), "Distinct": (61.0, None, None, 5)}


@pytest.fixture
def checkpoint(make_captioner, vocabulary, tmp_path):
    captioner, path = make_captioner(), tmp_path / "run" / "checkpoint_best.pth"
    result = path.parent / "result" / "test"
    result.mkdir(parents=True)
    config = {**settings_of(hf_config(captioner)), "tokenizer": str(vocabulary)}
    config.update(objective={"mle": 0.01, "smile": 0.99}, dataset="coco", train_file="a/t.json")
    torch.save({"model": captioner.state_dict(), "config": config}, path)
    names = ("value", "low", "high", "n")
    metrics = {name: dict(zip(names, values)) for name, values in METRICS.items()}
    (result / "metrics.json").write_text(json.dumps({"metrics": metrics}))
    (result / "run.json").write_text(json.dumps({"checkpoint": str(path)}))
    return path


def test_the_hub_reads_licence_scores_and_intervals(checkpoint, tmp_path):
    folder = tmp_path / "hf"
    to_hf = ["BLIP.convert", "to-hf", checkpoint, folder, "--license", "bsd-3-clause"]
    assert run_program(*to_hf).code == 0
    card = ModelCard.load(folder / "README.md")
    assert (card.data.license, card.data.pipeline_tag) == ("bsd-3-clause", "image-to-text")
    first, second = card.data.eval_results
    assert (first.metric_name, first.metric_value, first.dataset_split) == ("CIDEr", 0.9, "test")
    assert first.metric_args == {"interval_95": [0.8, 1.0]} and second.metric_args is None
    for text in ('{"mle": 0.01, "smile": 0.99}', "coco, t.json", "| CIDEr | 0.9 | 0.8 to 1 |"):
        assert text in card.text
    # Scores of another checkpoint are not this one's, and another author's card stays.
    (checkpoint.parent / "result/test/run.json").write_text('{"checkpoint": "other.pth"}')
    assert run_program(*to_hf).code == 0
    assert not ModelCard.load(folder / "README.md").data.eval_results
    text = (folder / "README.md").read_text().replace(MARK, "mine")
    (folder / "README.md").write_text(text)
    assert run_program(*to_hf).code == 0 and (folder / "README.md").read_text() == text


def test_a_name_of_the_hub_is_owner_and_name_and_no_path_that_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").touch()
    assert is_repository("Qwen/Qwen2.5-VL-7B") and not is_repository("a/b")
    assert not is_repository("output/run/checkpoint_best.pth")
