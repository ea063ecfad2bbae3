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

    def card(evaluated, folder):
        (result / "run.json").write_text(json.dumps({"checkpoint": str(evaluated)}))
        to_hf = ["BLIP.convert", "to-hf", path, folder, "--license", "bsd-3-clause"]
        assert run_program(*to_hf).code == 0
        return ModelCard.load(folder / "README.md")

    found = card(path, tmp_path / "hf")
    assert (found.data.license, found.data.pipeline_tag) == ("bsd-3-clause", "image-to-text")
    described = json.loads(found.text.split("```json")[1].split("```")[0])
    expected = {"train_file": "a/t.json", "objective": config["objective"], "test": scores}
    assert described == expected
    # Scores of another checkpoint are not this one's, and an author's card stays.
    assert "CIDEr" not in card("other.pth", tmp_path / "again").text
    (tmp_path / "hf" / "README.md").write_text("---\nlicense: mit\n---\nmine")
    assert card(path, tmp_path / "hf").text == "mine"


def test_a_locale_without_utf_8_changes_nothing(make_captioner, vocabulary, tmp_path):
    """Python reads files in the locale's encoding unless told otherwise."""
    captioner, path = make_captioner(), tmp_path / "checkpoint_best.pth"
    config = {**settings_of(hf_config(captioner)), "tokenizer": str(vocabulary)}
    torch.save({"model": captioner.state_dict(), "config": config}, path)
    result = tmp_path / "result" / "test"
    result.mkdir(parents=True)
    scored = {"checkpoint": str(path), "command": "prompt=ein schöner "}
    (result / "run.json").write_text(json.dumps(scored, ensure_ascii=False), encoding="utf-8")
    (result / "metrics.json").write_text('{"metrics": {"CIDEr": {"value": 0.9}}}')
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "BLIP.convert", "to-hf", path, tmp_path / "hf"]
    subprocess.run(command, env={**os.environ, **ascii_only}, check=True)
    assert "CIDEr" in (tmp_path / "hf" / "README.md").read_text()
