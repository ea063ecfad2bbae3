"""Files that are damaged or of something else: one line. tests/test_safety.py has attacks."""

import argparse
import io

import pytest
import torch

from BLIP import load_weights, read_checkpoint
from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from tests.attacks import Attack, here  # noqa: F401 - a fixture
from tests.programs import raises_line, unchanged


def saved(content, **settings):
    buffer = io.BytesIO()
    torch.save(content, buffer, **settings)
    return buffer.getvalue()


STATE = {"w": torch.ones(300)}
WHOLE = saved({"model": STATE})
NO_STATE = "{} is not a state dict and has none as 'model'"
BLOCKED = (
    "{} is damaged (it has more than tensors, numbers and text, or is not a checkpoint): write"
)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 12\n"
# name: content, the beginning of what is said
UNREADABLE = {
    "none.pth": (None, "{} does not exist"),
    ".": (None, "{} is a folder without model.safetensors"),
    "empty.pth": (b"", "{} is damaged ("),
    "cut.pth": (WHOLE[: len(WHOLE) // 2], "{} is damaged ("),
    "cut at its end.pth": (WHOLE[:-10], "{} is damaged ("),
    "page.pth": (b"<html>404</html>", BLOCKED),
    "pointer.pth": (LFS, "{} is a pointer of Git LFS to the weights: run git lfs pull"),
    "a number.pth": (saved(3), NO_STATE),
    "no weights.pth": (saved({"epoch": 3}), NO_STATE),
    "text.pth": (saved({"model": {"w": "1"}}), NO_STATE),
    "meta.pth": (saved({"model": {"w": torch.ones(3, device="meta")}}), NO_STATE),
    "numbered.pth": (saved({"model": {1: torch.ones(1)}}), NO_STATE),
    "empty.safetensors": (b"", "{} cannot be read: "),
    "text.safetensors": (b"just text", "{} cannot be read: "),
    "huge header.safetensors": (b"\xff" * 7 + b"\0{}", "{} cannot be read: "),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_is_not_a_checkpoint_is_one_line_and_stays(tmp_path, name):
    content, message = UNREADABLE[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with unchanged(tmp_path), raises_line(ValueError, start=message.format(name)):
        read_checkpoint(name)


def test_objects_are_named_and_on_demand_left_out():
    settings = argparse.Namespace(vit="base")
    content = {"model": STATE, "args": settings}
    torch.save(content, "a.pth")
    with pytest.raises(ValueError) as error:
        read_checkpoint("a.pth")
    assert str(error.value) == (
        "a.pth has objects that could run code (argparse.Namespace); if you know where the file "
        "comes from, set trust_checkpoint: true to load it without them"
    )
    content = read_checkpoint("a.pth", trust_checkpoint=True)
    assert torch.equal(content["model"]["w"], STATE["w"]) and not vars(content["args"])


NOT_OF = "f.pth does not fit this model ("
KEY = "visual_encoder.norm.weight"
H = "visual_encoder.h"
FIRST = "text_decoder.bert.embeddings.LayerNorm.bias"
# change of a whole state dict, the beginning of what is said
OTHERS = [
    (lambda s: s[KEY].fill_(float("nan")), f"f.pth has values that are not finite, in {KEY}: its"),
    (lambda s: s.update({KEY: torch.ones(7)}), f"{NOT_OF}Error(s) in loading state_dict"),
    (lambda s: s.pop(KEY), f"{NOT_OF}1 keys differ, such as {KEY}): check model "),
    (lambda s: s.update({H: torch.ones(7)}), f"{NOT_OF}1 keys differ, such as {H}): "),
    (lambda s: (s.clear(), s.update(STATE)), f"{NOT_OF}91 keys differ, such as {FIRST}): "),
]


@pytest.mark.parametrize(("change", "message"), OTHERS)
def test_weights_that_do_not_fit_change_nothing(make_captioner, change, message):
    captioner = make_captioner()
    before = {key: value.clone() for key, value in captioner.state_dict().items()}
    state = {key: value.clone() for key, value in before.items()}
    change(state)
    with raises_line(ValueError, start=message):
        load_weights(captioner, state, "f.pth")
    torch.testing.assert_close(captioner.state_dict(), before)


OWN = {"model": STATE, "optimizer": {"state": {}}, "config": {"seed": 1}, "epoch": 0}
NO_RUN = "is not a checkpoint of a run"
NAN = {"w": torch.tensor([float("nan")])}
# the newest checkpoint in a run's folder, what is said after the file's name
RESUMED = [
    (OWN | {"x": Attack()}, "has objects that could run code"),
    ({"model": STATE}, NO_RUN),
    ([1], NO_RUN),
    (OWN | {"model": {"w": 1}}, NO_RUN),
    (OWN | {"model": NAN}, "has values that are not finite, in w: its"),
]


@pytest.mark.parametrize(("content", "message"), RESUMED)
def test_a_run_skips_a_bad_checkpoint_for_the_one_before_if_there_is_one(
    tmp_path, content, message
):
    good, bad = checkpoints.epoch_path(tmp_path, 0), checkpoints.epoch_path(tmp_path, 1)
    torch.save(content, bad)
    start = f"{tmp_path} has no checkpoint that can be read ({bad} {message}"
    with unchanged(tmp_path), raises_line(UserError, "); set another output_dir", start=start):
        checkpoints.read_newest(tmp_path)
    checkpoints.save(OWN, good)
    path, _, (line,) = checkpoints.read_newest(tmp_path)
    assert path == good and "\n" not in line
    assert line.startswith(f"skipping a checkpoint: {bad} {message}")
