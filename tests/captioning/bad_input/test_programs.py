"""The programs in the folder of a finished run: bad input is one line and changes no byte there."""

import pickle
import shutil

import pytest
import torch
from PIL import Image

from captioning import attend, calibrate, train
from captioning.report import __main__ as report
from tests.test_safety import Attack


@pytest.fixture(scope="module")
def finished(scenes_config, tmp_path_factory):
    """Return the folder of a run that has ended, captions and scores of its test split with it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    call = ["--config", str(scenes_config), "--output_dir", str(folder), "metrics=[length]"]
    assert train.main([*call, "max_epoch=1"]) == 0
    assert train.main([*call, "max_epoch=1", "--evaluate", "--eval_split", "test"]) == 0
    return folder


@pytest.fixture(scope="module")
def files(finished, scenes, tmp_path_factory):
    """Return a folder of bad files, each named for what is wrong with it."""
    folder = tmp_path_factory.mktemp("files")
    content = torch.load(finished / "checkpoint_best.pth", weights_only=True)
    torch.save({**content, "x": Attack()}, folder / "attack.pth")
    (folder / "pickle.pth").write_bytes(pickle.dumps(Attack()))
    torch.save({"model": {"w": torch.ones(3)}}, folder / "other.pth")
    broken = {**content["model"]}
    broken["visual_encoder.norm.weight"] = torch.full((32,), float("nan"))
    torch.save({**content, "model": broken}, folder / "nan.pth")
    (folder / "empty.json").write_text("")
    (folder / "text.jpg").write_text("no image")
    Image.new("RGB", (2, 3000)).save(folder / "strip.png")
    images = folder / "images"
    shutil.copytree(scenes / "images", images / "images")
    for path in sorted((images / "images").iterdir())[-7:]:  # those of the test split
        path.write_text("no image")
    return folder


@pytest.fixture
def names(scenes_config, scenes, finished, files):
    photo = next((scenes / "images").iterdir())
    return {"config": scenes_config, "run": finished, "files": files, "photo": photo}


def tree(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


TRAIN = ("--config", "{config}", "--output_dir", "{run}", "metrics=[length]", "max_epoch=1")
EVALUATE = (*TRAIN, "--evaluate", "--eval_split", "test")
ROWS = [  # program, arguments, {files} being the folder of bad files, and a part of what is said
    (train, [*TRAIN, "num_beam=3"], "unknown key 'num_beam'; did you mean 'num_beams'?"),
    (train, [*TRAIN, "train_file={files}/empty.json"], "empty.json: the file is empty: download"),
    (train, [*TRAIN, "init_lr=2e-3"], "had other settings (init_lr was 0.001, is 0.002); set "),
    (train, [*EVALUATE, "image_root={files}/images"], ": not a readable image (none of JPEG, PNG,"),
    (
        *(train, [*EVALUATE, "image_root={files}/images", "skip_bad_images=true"]),
        "test: no image could be read, so there is nothing to score",
    ),
    (train, [*EVALUATE, "pretrained={files}/attack.pth"], "attack.pth has objects that could run"),
    (train, [*EVALUATE, "pretrained={files}/pickle.pth", "trust_checkpoint=true"], "pickle.pth "),
    (attend, ["--checkpoint", "{files}/attack.pth", "{files}/text.jpg"], "text.jpg: not a readab"),
    (attend, ["--checkpoint", "{files}/attack.pth", "{photo}"], "attack.pth has objects"),
    (
        *(attend, ["--checkpoint", "{files}/nan.pth", "{files}/strip.png"]),
        "strip.png: 2 x 3000 pixels are too long and thin to draw on: crop it",
    ),
    (calibrate, ["--checkpoint", "{files}/pickle.pth"], "pickle.pth "),
    (calibrate, ["--checkpoint", "{files}/other.pth"], "other.pth does not contain the config"),
    (report, ["{files}"], "not a run: it has no config.yaml"),
]


@pytest.mark.parametrize(("program", "arguments", "message"), ROWS)
def test_bad_input_is_one_line(names, tmp_path, monkeypatch, capsys, program, arguments, message):
    monkeypatch.chdir(tmp_path)
    before = tree(names["run"])
    assert program.main([argument.format(**names) for argument in arguments]) == 2
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0] and (program is train or lines == errors)
    assert printed.out == "" and "Traceback" not in printed.err
    assert tree(names["run"]) == before and not list(tmp_path.iterdir())
