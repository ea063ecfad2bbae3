"""Checkpoints to folders of transformers and back: nothing is lost, and errors are one line."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import BertWordPieceTokenizer
from transformers import BertTokenizerFast

from BLIP.checkpoint import read_checkpoint, settings_of
from BLIP.convert import hf_config, save_hf
from BLIP.from_checkpoint import captioner_of
from BLIP.tokenizer import CaptionTokenizer
from tests.BLIP.states import assert_equal
from tests.programs import refused, run_program, unchanged


@pytest.fixture
def folder(make_captioner, tmp_path):
    save_hf(make_captioner(), tmp_path / "hf")
    return tmp_path / "hf"


def test_there_and_back_by_the_commands(make_captioner, vocabulary, tmp_path):
    captioner = make_captioner(image_size=64, prompt="a large ")
    first, folder, second = tmp_path / "first.pth", tmp_path / "hf", tmp_path / "second.pth"
    settings = settings_of(hf_config(captioner))
    torch.save({"model": captioner.state_dict(), "config": {"prompt": "a large "}}, first)
    flags = [f"--{key}={json.dumps(settings[key])}" for key in ("vit", "med_config")]
    to_hf = ["to-hf", first, folder, "--tokenizer", vocabulary, *flags]
    for command in (to_hf, ["from-hf", folder, second]):
        code, out, _ = run_program("BLIP.convert", *command)
        assert code == 0 and out.count("wrote") == 1
    assert_equal(read_checkpoint(str(second))["model"], captioner.state_dict())
    # The checkpoint knows its own sizes, prompt and vocabulary now.
    folder.rename(tmp_path / "moved")
    again = captioner_of(str(second))
    assert_equal(again.state_dict(), captioner.state_dict())
    assert again.visual_encoder.blocks[0].attn.num_heads == 4
    assert again.prompt_ids.tolist() == captioner.prompt_ids.tolist()


def test_the_folder_has_the_settings_of_a_tokenizer_json(make_captioner, vocabulary, tmp_path):
    words = [*vocabulary.read_text().split(), "Hund", "schön", "schon", "hund"]
    bert = BertWordPieceTokenizer(
        {word: number for number, word in enumerate(words)}, lowercase=False, strip_accents=False
    )
    bert.save(str(tmp_path / "tokenizer.json"))
    captioner = make_captioner(tokenizer=str(tmp_path / "tokenizer.json"))
    save_hf(captioner, tmp_path / "hf")
    expected = captioner.tokenizer.ids("Hund schön")
    assert expected == [len(words) - 4, len(words) - 3]
    theirs = BertTokenizerFast.from_pretrained(str(tmp_path / "hf"))
    assert theirs("Hund schön", add_special_tokens=False)["input_ids"] == expected
    assert CaptionTokenizer(str(tmp_path / "hf")).ids("Hund schön") == expected


def text_config(**changes):
    def apply(path):
        config = json.loads((path / "config.json").read_text())
        config["text_config"].update(changes)
        (path / "config.json").write_text(json.dumps(config))

    return apply


def weights(change):
    def apply(path):
        save_file(change(load_file(path / "model.safetensors")), path / "model.safetensors")

    return apply


MISSING = "vision_model.encoder.layers.1.mlp.fc1.bias"
DAMAGE = {
    "config.json": lambda path: (path / "config.json").unlink(),
    "the model_type in config.json is git, not blip": lambda path: (
        path / "config.json"
    ).write_text('{"model_type": "git"}'),
    "size mismatch for text_decoder.bert.encoder.layer.0.interm": text_config(intermediate_size=7),
    "med_config: hidden_size must be a multiple": text_config(num_attention_heads=7),
    "hf is a folder without model.safetensors": lambda path: (path / "model.safetensors").unlink(),
    "hf has no image encoder of BLIP": weights(lambda state: {"a": torch.ones(1)}),
    "1 keys differ, such as visual_encoder.blocks.1.mlp.fc1.bias": weights(
        lambda state: {k: v for k, v in state.items() if k != MISSING}
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_a_folder_that_is_not_whole_is_one_line_and_leaves_the_target(folder, tmp_path, message):
    DAMAGE[message](folder)
    (tmp_path / "kept.pth").write_bytes(b"kept")
    with unchanged(tmp_path):
        refused("BLIP.convert", "from-hf", folder, tmp_path / "kept.pth", part=message)


def test_a_write_that_fails_leaves_the_target(folder, tmp_path, monkeypatch):
    def full_disk(_, path):
        path.write_bytes(b"half")
        raise RuntimeError("PytorchStreamWriter failed writing file")

    (tmp_path / "kept.pth").write_bytes(b"kept")
    monkeypatch.setattr(torch, "save", full_disk)
    for target in ("kept.pth", "nowhere/x.pth"):
        with unchanged(tmp_path):
            refused("BLIP.convert", "from-hf", folder, tmp_path / target, part=target)


@pytest.mark.parametrize("flags", [["--vit", "huge"], ["--vit", '{"foo": 1}'], []])
def test_a_checkpoint_that_cannot_be_built_is_one_line(make_captioner, tmp_path, flags):
    path = tmp_path / ("a.pth" if flags else "\x1b]0;title\x07.pth")
    if flags:
        torch.save({"model": make_captioner().state_dict()}, path)
    part = "" if flags else r"\x1b]0;title\x07.pth does not exist"
    error = refused("BLIP.convert", "to-hf", path, tmp_path / "b", *flags, part=part)
    assert "\x1b" not in error
