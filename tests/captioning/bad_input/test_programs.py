"""Programs on a run that has ended: bad input is one line and changes no byte of the run."""

import shutil

import pytest
import torch

from tests.attacks import attacks
from tests.programs import one_error_line, run_program, unchanged


@pytest.fixture(scope="module")
def names(trained, scenes_config, scenes, tmp_path_factory):
    """Return a run, a photo, and a folder of files that are named for what is wrong with them."""
    run = trained(tmp_path_factory.mktemp("finished") / "run")
    folder = tmp_path_factory.mktemp("files")
    (attack, _, pickled), _ = attacks(folder)
    attack.rename(folder / "attack.pth")
    pickled.rename(folder / "pickle.pth")
    torch.save({"model": {"w": torch.ones(3)}}, folder / "other.pth")
    (folder / "empty.json").write_text("")
    late = scenes_config.read_text().replace("scenes_train.json", "gone.json")
    (folder / "late.yaml").write_text(late)
    shutil.copytree(scenes / "images", folder / "images")
    for path in (folder / "images").iterdir():
        path.write_text("no image")
    photo = min((scenes / "images").iterdir())
    return {"config": scenes_config, "run": run, "files": folder, "photo": photo}


NEW = "train --config {config} --output_dir new"
TRAIN = "train --config {config} --output_dir {run} metrics=[length] max_epoch=1"
EVALUATE = f"{TRAIN} --evaluate --eval_split test"
UNREAD = f"{EVALUATE} image_root={{files}}"
ATTEND = "attend --checkpoint {files}/attack.pth"
# a program and its arguments, a part of what is said
ROWS = [
    (f"{NEW} --evaluate", "nothing to evaluate: "),
    (f"{NEW} --evaluate pretrained=absent.pth", "absent.pth does not exist"),
    (f"{EVALUATE} max_length=600", "it must be 5 to 512"),
    (f"{EVALUATE} max_tokens=5", "max_tokens is 5; with this prompt"),
    (f"{TRAIN} train_file={{files}}/empty.json", "empty.json: not valid JSON at line 1 (Exp"),
    (UNREAD, ": not a readable image (none of JPEG, PNG,"),
    (f"{UNREAD} skip_bad_images=true", "test: no image could be read, so there is nothing to sco"),
    (f"{EVALUATE} pretrained={{files}}/attack.pth", "attack.pth has objects that could run"),
    (f"{EVALUATE} pretrained={{files}}/pickle.pth trust_checkpoint=true", "pickle.pth "),
    (f"{ATTEND} {{files}}/empty.json", "empty.json: not a readable image"),
    (f"{ATTEND} {{photo}}", "attack.pth has objects that could run"),
    ("calibrate --checkpoint {files}/other.pth", "other.pth does not contain the config"),
    ("calibrate --checkpoint {run} --config {files}/late.yaml", "gone.json: no such file"),
    ("report {files}", "not a run: it has no config.yaml"),
]


@pytest.mark.parametrize(("command", "message"), ROWS)
def test_bad_input_is_one_line_and_changes_no_byte_of_the_run(
    names, tmp_path, monkeypatch, command, message
):
    monkeypatch.chdir(tmp_path)
    program, *arguments = [word.format(**names) for word in command.split()]
    with unchanged(names["run"], tmp_path):
        code, out, err = run_program(f"captioning.{program}", *arguments)
    line = one_error_line(err, message)
    assert (code, out) == (2, "") and line.startswith("error: ")
    assert program == "train" or err == f"{line}\n"  # training logs what comes before
