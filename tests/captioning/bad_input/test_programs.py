"""The programs in the folder of a finished run: bad input is one line and changes no byte there."""

import os
import pickle
import shutil

import pytest
import torch
from PIL import Image

from captioning import attend, calibrate, train
from captioning.report.__main__ import main as report


class Attack:
    """A pickle that makes a folder when it is read."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


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


def tree(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


EVALUATE = ("--evaluate", "--eval_split", "test")
ROWS = [  # arguments, {f} being the folder of bad files, and a part of what is said
    (["num_beam=3"], "unknown key 'num_beam'; did you mean 'num_beams'?"),
    (["train_file={f}/empty.json"], "empty.json: the file is empty: download or write it again"),
    (["init_lr=2e-3"], "had other settings (init_lr was 0.001, is 0.002); set another output_dir"),
    ([*EVALUATE, "image_root={f}/images"], ": not a readable image (none of JPEG, PNG,"),
    (
        [*EVALUATE, "image_root={f}/images", "skip_bad_images=true"],
        "test: no image could be read, so there is nothing to score",
    ),
    ([*EVALUATE, "pretrained={f}/attack.pth"], "attack.pth has objects that could run code ("),
    ([*EVALUATE, "pretrained={f}/pickle.pth", "trust_checkpoint=true"], "pickle.pth "),
]


@pytest.mark.parametrize(("arguments", "message"), ROWS)
def test_training_and_evaluation(
    scenes_config, finished, files, tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    before = tree(finished)
    arguments = [argument.replace("{f}", str(files)) for argument in arguments]
    call = ["--config", str(scenes_config), "--output_dir", str(finished), "metrics=[length]"]
    assert train.main([*call, "max_epoch=1", *arguments]) == 2
    printed = capsys.readouterr()
    errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert printed.out == "" and len(errors) == 1 and message in errors[0]
    assert "Traceback" not in printed.err
    assert tree(finished) == before and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        (attend.main, ["--checkpoint", "{f}/attack.pth", "{f}/text.jpg"], "text.jpg: not a readab"),
        (attend.main, ["--checkpoint", "{f}/attack.pth", "{s}"], "attack.pth has objects"),
        (
            attend.main,
            ["--checkpoint", "{f}/nan.pth", "{f}/strip.png"],
            "strip.png: 2 x 3000 pixels are too long and thin to draw on: crop it",
        ),
        (calibrate.main, ["--checkpoint", "{f}/pickle.pth"], "pickle.pth "),
        (
            calibrate.main,
            ["--checkpoint", "{f}/other.pth"],
            "other.pth does not contain the config",
        ),
        (report, ["{f}"], "not a run: it has no config.yaml"),
    ],
)
def test_the_other_programs(
    files, scenes, tmp_path, monkeypatch, capsys, program, arguments, message
):
    monkeypatch.chdir(tmp_path)
    photo = next((scenes / "images").iterdir())
    given = [a.replace("{f}", str(files)).replace("{s}", str(photo)) for a in arguments]
    assert program(given) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1 and not list(tmp_path.iterdir())
