"""capevalkit's release runs our metric, and writes files that captioning.evaluate reads."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from captioning.data.caption_files import read_predictions, read_references

CAPTIONS = {"007": "a red ring on the sand", "b": "two dogs in the snow"}
REFERENCES = {"007": ["a ring on the sand", "a large red ring"], "b": ["two brown dogs", "dogs"]}


@pytest.fixture
def rows(tmp_path):
    """The files of capevalkit: the predictions and the references."""
    predictions = [
        {"id": key, "caption": text, "image": f"{n}.png"}
        for n, (key, text) in enumerate(CAPTIONS.items())
    ]
    references = [{"id": key, "references": texts} for key, texts in REFERENCES.items()]
    files = tmp_path / "predictions.jsonl", tmp_path / "references.jsonl"
    for file, lines in zip(files, (predictions, references)):
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return files


def test_its_files_are_read(rows):
    predictions, references = rows
    assert read_predictions(predictions) == CAPTIONS
    assert read_references(references) == REFERENCES


def test_its_release_runs_our_metric(rows, repository, tmp_path, monkeypatch):
    api = pytest.importorskip("capevalkit.api", reason="pip install capevalkit")
    of_theirs = pytest.importorskip("capevalkit.metrics.pycocoevalcap_metrics")
    uv = pytest.importorskip("uv", reason="capevalkit runs metrics by uv")
    programs = [Path(uv.find_uv_bin()).parent, Path(shutil.which("java") or "").parent]
    monkeypatch.setenv("PATH", ":".join(map(str, [*programs, "/usr/bin", "/bin"])))
    monkeypatch.setenv("CAPEVALKIT_RUNTIME_ROOT", str(tmp_path / "runtime"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    [manifest] = re.findall(
        r"```toml\n(.*?)```", (repository / "docs/metrics.md").read_text(), re.S
    )
    for shown, real in {
        "/path/to/this/checkout": str(repository),
        "/path/to/its/python": sys.executable,
        "clipscore": "coco",
    }.items():
        manifest = manifest.replace(shown, real)
    folder = tmp_path / "runtime" / "metrics" / "smile-coco"
    folder.mkdir(parents=True)
    (folder / "metric.toml").write_text(manifest)
    project = '[project]\nname = "smile-coco"\nversion = "0"\nrequires-python = ">=3.9"\n'
    (folder / "pyproject.toml").write_text(project)
    pairs = [{"id": key, "image": "x.png", "caption": text} for key, text in CAPTIONS.items()]
    pairs = [{**pair, "references": REFERENCES[pair["id"]]} for pair in pairs]
    found = api.evaluate_captions(
        metrics=["smile-coco"], pairs=pairs, output_dir=tmp_path / "out", quiet=False
    )["smile-coco"]
    expected = of_theirs.compute_pycocoevalcap(*map(str, rows), ["rouge", "cider"])
    for ours, theirs in {"ROUGE_L": "ROUGE-L", "CIDEr": "CIDEr"}.items():
        assert found[ours]["score"] == pytest.approx(expected[theirs]["score"])
        assert found[ours]["per_item"] == pytest.approx(expected[theirs]["per_item"])
