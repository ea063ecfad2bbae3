"""Runs as training leaves them, made up in a moment."""

import json
import random

import pytest
import torch

from captioning.config import load_config, write_config
from captioning.files.writing import write_json
from captioning.models.build import captioner_from
from captioning.scenes.make import make_scenes
from tests.captioning.report.empty_figures import leave_figures_empty
from tests.tiny import TINY_RUN

METRICS = {
    "CIDEr": {"value": 1.2345, "low": 1.1, "high": 1.35, "n": 12},
    "Bleu_4": {"value": 0.321, "n": 12},
    "cap_len": {"value": 7.5, "low": 7.0, "high": 8.0, "n": 12},
    "lex_div": {"value": 0.042, "low": None, "high": None, "n": 12},
    "true_facts": {"value": 4.25, "low": 4.0, "high": 4.5, "n": 12},
    "wrong_facts": {"value": 12.5, "low": 10.0, "high": 15.0, "n": 12},
    "ROUGE_L": {"value": 0.5, "n": 12},
}


@pytest.fixture
def undrawn(monkeypatch):
    """Leave the figures empty but for their descriptions."""
    leave_figures_empty(monkeypatch)


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Return the folder of a drawn world of a few scenes."""
    folder = tmp_path_factory.mktemp("world") / "scenes"
    make_scenes(folder, 0, {"train": 1, "val": 1, "test": 12})
    return folder


@pytest.fixture
def entries(world):
    """Return the images of the world's test split, with their captions."""
    return json.loads((world / "scenes_test.json").read_text())


@pytest.fixture
def make_run(world, entries, tmp_path, no_java):
    """Return a function that makes up a finished run on the world's test split."""

    def make(name, objective="mle", captions=None, scores=METRICS, log=True, **settings):
        folder = tmp_path / "runs" / name
        (folder / "result" / "test").mkdir(parents=True)
        path = folder / "config.yaml"
        path.write_text(TINY_RUN.format(data=world))
        given = {"facts_file": "scenes.json", "metrics": ["coco", "length", "diversity", "facts"]}
        given.update({"objective": objective, "output_dir": str(folder), **settings})
        config = load_config(path, (), given)
        write_config(config, path)
        said = captions or {entry["image_id"]: entry["caption"][4] for entry in entries}
        results = [{"image_id": i, "caption": caption} for i, caption in said.items()]
        write_json(results, folder / "result" / "test.json")
        write_json({"metrics": scores, "skipped": {}}, folder / "result" / "test" / "metrics.json")
        record = {
            "command": f"/opt/bin/python3.11 /home/me/captioning/train.py --config {name}.yaml",
            "python": "3.11.7",
            "versions": {"torch": "2.8.0", "timm": None},
        }
        write_json(record, folder / "run.json")
        if log:
            (folder / "log.jsonl").write_text("".join(_log(objective)))
        captioner, _ = captioner_from(config, None)
        torch.save({"model": captioner.state_dict()}, folder / "checkpoint_best.pth")
        return folder

    return make


def _log(objective):
    rng = random.Random(0)
    for step in range(10, 210, 10):
        parts = {name: rng.random() for name in ([objective] if objective == "mle" else objective)}
        yield json.dumps({"event": "step", "step": step, "loss": 1.0, **parts}) + "\n"
    for epoch in range(2):
        yield json.dumps({"event": "val", "step": epoch, "CIDEr": 0.5, "Bleu_4": 0.1}) + "\n"
    yield '{"event": "step", "st'


@pytest.fixture
def runs(make_run):
    """Return the folders of three runs that differ in their objective."""
    return [
        make_run("one"),
        make_run("two", {"smile": 1.0}),
        make_run("three", {"mle": 0.3, "smile": 0.7}, init_lr=3e-4),
    ]
