"""Files that are damaged or of something else: one line. tests/test_safety.py has attacks."""

import argparse
import copy
import io
import math
from pathlib import Path

import pytest
import torch

from BLIP import load_weights, read_checkpoint
from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from tests.programs import raises_line, unchanged


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def saved(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


STATE = {"w": torch.ones(300)}
NO_STATE = "{} is not a state dict and has none as 'model'"
BLOCKED = "{} is damaged (it has more than tensors, numbers and text, or is not a checkpoint): "
# name: content, the beginning of what is said
UNREADABLE = {
    "none.pth": (None, "{} does not exist"),
    ".": (None, "{} is a folder without model.safetensors"),
    "cut.pth": (saved({"model": STATE})[:900], "{} is damaged ("),
    "page.pth": (b"<html>404</html>", BLOCKED),
    "no weights.pth": (saved({"epoch": 3}), NO_STATE),
    "text.pth": (saved({"model": {"w": "1"}}), NO_STATE),
    "huge header.safetensors": (b"\xff" * 7 + b"\0{}", "{} cannot be read: "),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_is_not_a_checkpoint_is_one_line_and_stays(tmp_path, name):
    content, message = UNREADABLE[name]
    if content is not None:
        Path(name).write_bytes(content)
    with unchanged(tmp_path), raises_line(ValueError, start=message.format(name)):
        read_checkpoint(name)


def test_objects_are_named_and_on_demand_left_out():
    torch.save({"model": STATE, "args": argparse.Namespace(vit="base")}, "a.pth")
    line = (
        "a.pth has objects that could run code (argparse.Namespace); if you know where the file "
        "comes from, set trust_checkpoint: true to load it without them"
    )
    with raises_line(ValueError, start=line):
        read_checkpoint("a.pth")
    content = read_checkpoint("a.pth", trust_checkpoint=True)
    assert torch.equal(content["model"]["w"], STATE["w"]) and not vars(content["args"])


KEY, MORE = "visual_encoder.norm.weight", "visual_encoder.h"
# change of a whole state dict, the beginning of what is said
OTHERS = [
    (lambda s: s[KEY].fill_(math.nan), f"f.pth has values that are not finite, in {KEY}: its run"),
    (lambda s: s.update({KEY: torch.ones(7)}), "f.pth does not fit this model (Error(s) in load"),
    (lambda s: s.pop(KEY), f"f.pth does not fit this model (1 keys differ, such as {KEY}): check"),
    (lambda s: s.update({MORE: torch.ones(7)}), "f.pth does not fit this model (1 keys differ, "),
]


@pytest.mark.parametrize(("change", "message"), OTHERS)
def test_weights_that_do_not_fit_change_nothing(make_captioner, change, message):
    captioner = make_captioner()
    before, state = (copy.deepcopy(captioner.state_dict()) for _ in range(2))
    change(state)
    with raises_line(ValueError, start=message):
        load_weights(captioner, state, "f.pth")
    torch.testing.assert_close(captioner.state_dict(), before)


OWN = {"model": STATE, "optimizer": {"state": {}}, "config": {"seed": 1}, "epoch": 0}
# the newest checkpoint in a run's folder, what is said after the file's name
RESUMED = [
    ([1], "is not a checkpoint of a run"),
    (OWN | {"model": {"w": 1}}, "is not a checkpoint of a run"),
    (OWN | {"model": {"w": torch.tensor([math.nan])}}, "has values that are not finite, in w: its"),
]


@pytest.mark.parametrize(("content", "message"), RESUMED)
def test_a_run_skips_a_bad_checkpoint_for_the_one_before_if_there_is_one(
    tmp_path, content, message
):
    good, bad = (checkpoints.epoch_path(tmp_path, epoch) for epoch in (0, 1))
    torch.save(content, bad)
    start = f"{tmp_path} has no checkpoint that can be read ({bad} {message}"
    with unchanged(tmp_path), raises_line(UserError, "); set another output_dir", start=start):
        checkpoints.read_newest(tmp_path)
    checkpoints.save(OWN, good)
    path, _, (line,) = checkpoints.read_newest(tmp_path)
    assert path == good and line.startswith(f"skipping a checkpoint: {bad} {message}")
