"""Checkpoints: every format, and the differences of the released files."""

import json

import pytest
import torch
from safetensors.torch import save_file

from BLIP.checkpoint import load_weights, read_checkpoint
from BLIP.convert import save_hf, to_hf_names

TIED = [f"text_decoder.cls.predictions.decoder.{name}" for name in ("weight", "bias")]
POSITION_IDS = "text_decoder.bert.embeddings.position_ids"


def write(state, path, save, in_shards):
    """Write a state dict in one file, or in two with transformers' index."""
    state = {key: value.clone() for key, value in state.items()}
    names = {key: f"part-{number % 2}{path.suffix}" for number, key in enumerate(state)}
    if not in_shards:
        save(state, path)
        return
    for shard in set(names.values()):
        save({k: v for k, v in state.items() if names[k] == shard}, path.with_name(shard))
    path.with_name(f"{path.name}.index.json").write_text(json.dumps({"weight_map": names}))


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
    folders = []
    for name, save in (("model.safetensors", save_file), ("pytorch_model.bin", torch.save)):
        for in_shards in (False, True):
            write(state, tmp_path / name, save, in_shards)
            folders.append(tmp_path / f"{name} {in_shards}")  # a folder of transformers
            save_hf(source, folders[-1])
            (folders[-1] / "model.safetensors").unlink()
            write(to_hf_names(state), folders[-1] / name, save, in_shards)
    files = [path for path in tmp_path.glob("*.*") if path.is_file() and "part-" not in path.name]
    assert len(files) == 14
    for path in [*files, *folders]:
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


def test_what_the_released_files_lack_or_have_too_much_is_reported(make_captioner):
    captioner, source = make_captioner(), make_captioner().half().float().state_dict()
    state = {key: source[key] for key in source if key not in (*TIED, POSITION_IDS)}
    state = {key: value.half() for key, value in state.items()}
    state["text_encoder.embeddings.word_embeddings.weight"] = torch.zeros(3)
    state["visual_encoder_m.cls_token"] = state["temp"] = torch.zeros(1)
    report = load_weights(captioner, state, "file")
    assert report == "ignored 3 keys (text_encoder.embeddings.word_embeddings.weight, ...)"
    torch.testing.assert_close(captioner.state_dict(), source, rtol=0, atol=0)
