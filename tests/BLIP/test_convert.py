"""Checkpoints to folders of transformers and back: nothing is lost, and errors are one line."""

import json

import pytest
import torch
from safetensors.torch import save_file

from BLIP.checkpoint import read_checkpoint, settings_of
from BLIP.convert import hf_config, save_hf
from BLIP.from_checkpoint import captioner_of
from tests.programs import refused, run_program, unchanged


def test_there_and_back_by_the_commands(make_captioner, itm_checkpoint, vocabulary, tmp_path):
    captioner = make_captioner(image_size=64, prompt="a large ")
    first, folder, second = tmp_path / "first.pth", tmp_path / "hf", tmp_path / "second.pth"
    settings = settings_of(hf_config(captioner))
    # A file that also has BLIP's filter is converted as a captioner.
    state = {**torch.load(itm_checkpoint)["model"], **captioner.state_dict()}
    torch.save({"model": state, "config": {"prompt": "a large "}}, first)
    flags = [f"--{key}={json.dumps(settings[key])}" for key in ("vit", "med_config")]
    to_hf = ["to-hf", first, folder, "--tokenizer", vocabulary, *flags]
    for command in (to_hf, ["from-hf", folder, second]):
        code, out, _ = run_program("BLIP.convert", *command)
        assert code == 0 and out.count("wrote") == 1
    equal = {"rtol": 0, "atol": 0}
    state = read_checkpoint(str(second))["model"]
    torch.testing.assert_close(state, dict(captioner.state_dict()), **equal)
    # The checkpoint knows its own sizes, prompt and vocabulary now.
    folder.rename(tmp_path / "moved")
    again = captioner_of(str(second))
    torch.testing.assert_close(again.state_dict(), captioner.state_dict(), **equal)
    assert again.visual_encoder.blocks[0].attn.num_heads == 4
    assert again.prompt_ids.tolist() == captioner.prompt_ids.tolist()


def text_config(**changes):
    def apply(path):
        config = json.loads((path / "config.json").read_text())
        config["text_config"].update(changes)
        (path / "config.json").write_text(json.dumps(config))

    return apply


# what is said: the change of a folder
DAMAGE = {
    "config.json": lambda path: (path / "config.json").unlink(),
    "the model_type in config.json is git, not blip": lambda path: (
        path / "config.json"
    ).write_text('{"model_type": "git"}'),
    "size mismatch for text_decoder.bert.encoder.layer.0.interm": text_config(intermediate_size=7),
    "med_config: hidden_size must be a multiple": text_config(num_attention_heads=7),
    "hf is a folder without model.safetensors": lambda path: (path / "model.safetensors").unlink(),
    "hf has no image encoder of BLIP": lambda path: save_file(
        {"a": torch.ones(1)}, path / "model.safetensors"
    ),
    "kept.pth: No space left": lambda path: None,
}


@pytest.mark.parametrize("message", DAMAGE)
def test_a_failed_conversion_is_one_line_and_leaves_the_target(
    make_captioner, tmp_path, monkeypatch, message
):
    def full_disk(_, path):
        path.write_bytes(b"half")
        raise RuntimeError("No space left")

    save_hf(make_captioner(), tmp_path / "hf")
    DAMAGE[message](tmp_path / "hf")
    (tmp_path / "kept.pth").write_bytes(b"kept")
    monkeypatch.setattr(torch, "save", full_disk)
    with unchanged(tmp_path):
        refused("BLIP.convert", "from-hf", tmp_path / "hf", tmp_path / "kept.pth", part=message)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--vit", "huge"], "vit is 'huge'; it must be base, large or a mapping of sizes"),
        (["--vit", '{"foo": 1}'], "vit: unknown key 'foo'"),
        (["--tokenizer", "\x1b]0;title\x07"], r"tokenizer: \x1b]0;title\x07 is not a BERT"),
    ],
)
def test_a_checkpoint_that_cannot_be_built_is_one_line(
    make_captioner, vocabulary, tmp_path, flags, part
):
    torch.save({"model": make_captioner().state_dict()}, tmp_path / "a.pth")
    command = ["to-hf", tmp_path / "a.pth", tmp_path / "b", "--tokenizer", vocabulary, *flags]
    assert "\x1b" not in refused("BLIP.convert", *command, part=part)
