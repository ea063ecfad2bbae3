"""Runs as training leaves them, made up in a moment."""

import json

import pytest
import torch

from captioning.config import load_config, write_config
from captioning.files.writing import write_json
from captioning.models.build import captioner_from
from captioning.scenes.make import make_scenes
from tests.tiny import TINY_RUN

VALUES = {
    **{"CIDEr": (1.2345, 1.1, 1.35), "Bleu_4": (0.321,), "cap_len": (7.5, 7.0, 8.0)},
    **{"lex_div": (0.042,), "true_facts": (4.25, 4.0, 4.5), "wrong_facts": (12.5, 10.0, 15.0)},
    "ROUGE_L": (0.5,),
}
METRICS = {name: {**dict(zip(("value", "low", "high"), v)), "n": 12} for name, v in VALUES.items()}


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Return the folder of a drawn world of a few scenes."""
    folder = tmp_path_factory.mktemp("world") / "scenes"
    make_scenes(folder, 0, {"train": 1, "val": 1, "test": 12})
    return folder


@pytest.fixture
def entries(world):
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
        command = f"/opt/bin/python3.11 /home/me/captioning/train.py --config {name}.yaml"
        versions = {"torch": "2.8.0", "timm": None}
        record = {"command": command, "python": "3.11.7", "versions": versions}
        write_json(results, folder / "result" / "test.json")
        write_json({"metrics": scores, "skipped": {}}, folder / "result" / "test" / "metrics.json")
        write_json(record, folder / "run.json")
        parts = dict.fromkeys([objective] if objective == "mle" else objective or (), 1.0)
        lines = [{"event": "step", "step": n, "loss": 1.0, **parts} for n in range(10, 210, 10)]
        lines += [{"event": "val", "step": n, "CIDEr": 0.5, "Bleu_4": 0.1} for n in range(2)]
        if log:  # its last line was cut off
            whole = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / "log.jsonl").write_text(whole + '{"event": "step", "st')
        captioner, _ = captioner_from(config, None)
        torch.save({"model": captioner.state_dict()}, folder / "checkpoint_best.pth")
        return folder

    return make


@pytest.fixture
def runs(make_run):
    return [
        make_run("one"),
        make_run("two", {"smile": 1.0}),
        make_run("three", {"mle": 0.3, "smile": 0.7}, init_lr=3e-4),
    ]
