"""Checkpoints: every format, and the differences of the released files.

tests/captioning/bad_input/test_checkpoints.py has the files that are refused.
"""

import json

import pytest
import torch
from safetensors.torch import save_file

from BLIP.checkpoint import load_weights, read_checkpoint
from BLIP.convert import save_hf, to_hf_names
from BLIP.from_checkpoint import captioner_of

TIED = [f"text_decoder.cls.predictions.decoder.{name}" for name in ("weight", "bias")]
POSITION_IDS = "text_decoder.bert.embeddings.position_ids"


def save_shards(state, folder, suffix, save):
    """Write a state dict in two files of a folder, with transformers' index."""
    names = {key: f"part-{number % 2}.{suffix}" for number, key in enumerate(state)}
    for shard in set(names.values()):
        save({key: state[key].clone() for key in state if names[key] == shard}, folder / shard)
    index = folder / ("model" if suffix == "safetensors" else "pytorch_model")
    index = index.with_suffix(f".{suffix}.index.json")
    index.write_text(json.dumps({"weight_map": names}))
    return index


def test_a_file_of_every_form_gives_the_same_weights(make_captioner, tmp_path):
    source, target = make_captioner(), make_captioner()
    state = source.state_dict()
    extra = {"optimizer": {"state": {}}, "config": {"vit": "base"}, "epoch": 3}
    for name, content in {
        "full.pth": {"model": state, **extra},
        "bare.pth": dict(state),
        "lightning.ckpt": {"state_dict": state, **extra},
        "tutorial.pt": {"model_state_dict": state, **extra},
        "ddp.pth": {f"module.{key}": state[key] for key in state},
        "inner.ckpt": {"state_dict": {f"model.module.{key}": state[key] for key in state}},
        "compiled.pth": {"model": {f"_orig_mod.{key}": state[key] for key in state}},
        "both.pth": {"model": {f"module._orig_mod.{key}": state[key] for key in state}},
        "parts.pth": {key.replace(".", "._orig_mod.", 1): state[key] for key in state},
    }.items():
        torch.save(content, tmp_path / name)
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    save_file({k: v.clone() for k, v in state.items()}, tmp_path / "bare.safetensors")
    save_shards(state, tmp_path, "safetensors", save_file)
    save_shards(state, tmp_path, "bin", torch.save)
    paths = [path for path in sorted(tmp_path.iterdir()) if not path.name.startswith("part-")]
    assert len(paths) == 13
    for path in paths:
        for parameter in target.parameters():
            parameter.data.zero_()
        state_read = read_checkpoint(str(path))["model"]
        assert load_weights(target, state_read, path.name) == "every key matched", path
        torch.testing.assert_close(target.state_dict(), state)
    assert read_checkpoint(str(tmp_path / "full.pth"))["epoch"] == 3


@pytest.mark.parametrize("outer", ["", "model."])
def test_an_average_of_the_weights_beside_them_is_ignored(make_captioner, tmp_path, outer):
    state, target = make_captioner().state_dict(), make_captioner()
    average = {f"ema_model.{key}": torch.zeros_like(state[key]) for key in state}
    torch.save({**average, **{outer + key: state[key] for key in state}}, tmp_path / "ema.pth")
    report = load_weights(target, read_checkpoint(str(tmp_path / "ema.pth"))["model"], "ema.pth")
    assert report.startswith(f"ignored {len(state)} keys (")
    torch.testing.assert_close(target.state_dict(), state)


@pytest.mark.parametrize("form", ["safetensors", "bin", "safetensors shards", "bin shards"])
def test_a_folder_of_transformers_is_read_in_every_form(make_captioner, tmp_path, form):
    captioner, (suffix, *shards) = make_captioner(), form.split()
    save_hf(captioner, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    state, save = to_hf_names(captioner.state_dict()), save_file if suffix != "bin" else torch.save
    name = "pytorch_model.bin" if suffix == "bin" else "model.safetensors"
    if shards:
        file = save_shards(state, tmp_path, suffix, save)
    else:
        save({key: value.clone() for key, value in state.items()}, file := tmp_path / name)
    for source in (tmp_path, file):
        found = captioner_of(str(source))
        torch.testing.assert_close(found.state_dict(), captioner.state_dict(), rtol=0, atol=0)
        assert found.tokenizer.files["vocab.txt"] == captioner.tokenizer.files["vocab.txt"]


def test_what_the_released_files_lack_or_have_too_much_is_reported(make_captioner):
    captioner, source = make_captioner(), make_captioner().half().float().state_dict()
    state = {key: source[key] for key in source if key not in (*TIED, POSITION_IDS)}
    state = {key: value.half() for key, value in state.items()}
    state["text_encoder.embeddings.word_embeddings.weight"] = torch.zeros(3)
    state["visual_encoder_m.cls_token"] = state["temp"] = torch.zeros(1)
    report = load_weights(captioner, state, "file")
    assert report == "ignored 3 keys (text_encoder.embeddings.word_embeddings.weight, ...)"
    torch.testing.assert_close(captioner.state_dict(), source, rtol=0, atol=0)
