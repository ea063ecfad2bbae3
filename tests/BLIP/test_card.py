"""Cards of exported weights, read by the Hub's own parser."""

import json
import os
import subprocess
import sys

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
    scored = {"checkpoint": str(path), "command": "prompt=ein schöner "}
    (result / "run.json").write_text(json.dumps(scored, ensure_ascii=False), encoding="utf-8")
    command = ["to-hf", path, tmp_path / "hf", "--license", "bsd-3-clause"]
    # Python reads files in the locale's encoding unless told otherwise.
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    program = [sys.executable, "-m", "BLIP.convert", *command]
    subprocess.run(program, env={**os.environ, **ascii_only}, check=True)
    card = ModelCard.load(tmp_path / "hf" / "README.md")
    assert (card.data.license, card.data.pipeline_tag) == ("bsd-3-clause", "image-to-text")
    described = json.loads(card.text.split("```json")[1].split("```")[0])
    assert described == {
        "train_file": "a/t.json",
        "objective": config["objective"],
        "test": scores,
    }
    # Scores of another checkpoint are not this one's, and an author's card stays.
    (result / "run.json").write_text('{"checkpoint": "other.pth"}')
    assert run_program("BLIP.convert", "to-hf", path, tmp_path / "again").code == 0
    again = tmp_path / "again" / "README.md"
    assert "CIDEr" not in again.read_text()
    again.write_text("mine")
    assert run_program("BLIP.convert", "to-hf", path, tmp_path / "again").code == 0
    assert again.read_text() == "mine"
