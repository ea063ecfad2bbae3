"""Cards of exported weights, read by the Hub's own parser."""

import json

import torch
from huggingface_hub import ModelCard

from BLIP.checkpoint import settings_of
from BLIP.convert import hf_config
from tests.programs import run_program


def test_the_hub_reads_licence_objective_and_scores(make_captioner, vocabulary, tmp_path):
    captioner, path = make_captioner(), tmp_path / "run" / "checkpoint_best.pth"
    result = path.parent / "result" / "test"
    result.mkdir(parents=True)
    config = {**settings_of(hf_config(captioner)), "tokenizer": str(vocabulary)}
    config.update(objective={"mle": 0.01, "smile": 0.99}, train_file="a/t.json")
    torch.save({"model": captioner.state_dict(), "config": config}, path)
    scores = {"CIDEr": {"value": 0.9, "low": 0.8, "high": 1.0, "n": 5}}
    (result / "metrics.json").write_text(json.dumps({"metrics": scores}))
    (result / "run.json").write_text(json.dumps({"checkpoint": str(path)}))
    command = ["BLIP.convert", "to-hf", path, tmp_path / "hf"]
    assert run_program(*command, "--license", "bsd-3-clause").code == 0
    card = ModelCard.load(tmp_path / "hf" / "README.md")
    assert (card.data.license, card.data.pipeline_tag) == ("bsd-3-clause", "image-to-text")
    described = json.loads(card.text.split("```json")[1].split("```")[0])
    expected = {"train_file": "a/t.json", "objective": config["objective"], "test": scores}
    assert described == expected
    # An author's card stays, and scores of another checkpoint are not this one's.
    (tmp_path / "hf" / "README.md").write_text("mine")
    assert run_program(*command).code == 0
    assert (tmp_path / "hf" / "README.md").read_text() == "mine"
    (result / "run.json").write_text('{"checkpoint": "other.pth"}')
    assert run_program(*command[:-1], tmp_path / "again").code == 0
    assert "CIDEr" not in (tmp_path / "again" / "README.md").read_text()
