"""LoRA for BLIP: what learns, what is saved, how a run goes on, and what is exported."""

import json

import pytest
import torch

pytest.importorskip("peft", reason="peft is in the tests from Python 3.10")

from BLIP import merge
from BLIP.convert import captioner_of
from captioning import train
from captioning.config import load_config
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError
from tests.tiny_run import TINY_RUN

LORA = "lora: {r: 2, alpha: 8, dropout: 0.1}\n"


@pytest.fixture(scope="module")
def write(scenes, tmp_path_factory):
    """Return a function that writes a configuration of a tiny BLIP and returns its path."""
    folder = tmp_path_factory.mktemp("lora")

    def write(more=""):
        path = folder / f"tiny{len(list(folder.iterdir()))}.yaml"
        keys = "device: cpu\nlr_schedule: exponential\neval_every: 9\nmetrics: [length]\n"
        path.write_text(TINY_RUN.format(data=scenes) + keys + more)
        return path

    return write


@pytest.fixture(scope="module")
def base(write, tmp_path_factory):
    """Return the file of the weights that stay."""
    captioner, _ = captioner_from(load_config(write()), None)
    path = tmp_path_factory.mktemp("base") / "base.pth"
    torch.save({"model": captioner.state_dict()}, path)
    return path


@pytest.fixture(scope="module")
def runs(write, base, tmp_path_factory):
    """Return the configuration of two runs with LoRA, and their folders: one was stopped."""
    folder, path = tmp_path_factory.mktemp("runs"), write(f"{LORA}pretrained: {base}\n")
    for name, epochs in (("stopped", 1), ("stopped", 2), ("whole", 2)):
        arguments = ["--config", str(path), "--output_dir", str(folder / name)]
        assert train.main([*arguments, f"max_epoch={epochs}", "init_lr=1e-2"]) == 0
    return path, folder / "stopped", folder / "whole"


def read(path):
    return torch.load(path, weights_only=True)


def logits(captioner):
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return captioner.eval().predictions(image, [["a red disc"]])[0]


def test_a_run_that_goes_on_is_to_the_bit_as_if_it_had_not_stopped(runs):
    _, stopped, whole = runs
    found, expected = (read(folder / "checkpoint_01.pth")["model"] for folder in (stopped, whole))
    assert found.keys() == expected.keys()
    assert all(found[key].equal(value) for key, value in expected.items())


def test_a_checkpoint_holds_the_adapter_of_encoder_and_decoder_alone(runs, base):
    content = read(runs[2] / "checkpoint_01.pth")
    names = [key.removeprefix("base_model.model.") for key in content["model"]]
    assert all(key.endswith((".lora_A.weight", ".lora_B.weight")) for key in names)
    assert {key.split(".")[0] for key in names} == {"visual_encoder", "text_decoder"}
    assert not any("predictions.decoder" in key for key in names)
    assert all(value.abs().max() > 0 for value in content["model"].values())  # all have learned
    assert content["adapter_config"]["base_model_name_or_path"] == str(base)


def test_merged_weights_are_those_of_the_formula_and_caption_the_same(runs, base, tmp_path):
    path, _, whole = runs
    checkpoint, target = str(whole / "checkpoint_01.pth"), tmp_path / "merged.pth"
    assert merge.main([checkpoint, str(target)]) == 0
    merged, before, adapter = read(target)["model"], read(base)["model"], read(checkpoint)["model"]
    assert merged.keys() == before.keys()
    for key, value in before.items():
        name = f"base_model.model.{key.removesuffix('.weight')}.lora_"
        if f"{name}A.weight" in adapter:  # alpha / r is 4
            value = value + 4 * adapter[f"{name}B.weight"] @ adapter[f"{name}A.weight"]
        torch.testing.assert_close(merged[key], value)
    config = load_config(path)
    captioner, told = captioner_from(config, checkpoint)
    assert told.endswith("every key matched")
    plain, _ = captioner_from(load_config(path, ["lora="]), str(target))
    torch.testing.assert_close(logits(captioner), logits(plain), rtol=1e-4, atol=1e-5)
    start, _ = captioner_from(load_config(path, ["lora="]), str(base))
    assert not logits(captioner).allclose(logits(start), atol=1e-3)
    # The copy for inference has them merged, and changes nothing of what learns on.
    kept = {key: value.clone() for key, value in captioner.named_parameters()}
    copy = captioner.for_inference(torch.float32, False)
    torch.testing.assert_close(logits(copy), logits(plain), rtol=1e-4, atol=1e-5)
    assert all(value.equal(kept[key]) for key, value in captioner.named_parameters())
    torch.testing.assert_close(logits(captioner_of(checkpoint)), logits(plain))


def test_peft_loads_the_adapter(runs, write, base, tmp_path):
    from peft import PeftModel

    checkpoint, folder = str(runs[2] / "checkpoint_01.pth"), tmp_path / "adapter"
    assert merge.main([checkpoint, str(folder), "--adapter"]) == 0
    plain, _ = captioner_from(load_config(write()), str(base))
    PeftModel.from_pretrained(plain, folder)
    expected, _ = captioner_from(load_config(runs[0]), checkpoint)
    torch.testing.assert_close(logits(plain), logits(expected))


def test_what_cannot_be_done_is_one_line(runs, write, base, tmp_path, capsys):
    path, _, whole = runs
    checkpoint, bare = str(whole / "checkpoint_01.pth"), tmp_path / "bare.pth"

    def said(config, weights):
        with pytest.raises(UserError) as error:
            captioner_from(config, weights)
        assert "\n" not in str(error.value)
        return str(error.value)

    line = "lora is set, and pretrained is not: name the weights that stay"
    assert said(load_config(write(LORA)), None) == line
    signed = load_config(write(LORA), ["pretrained=https://host/a.pth?SECRET"])
    assert said(signed, str(base)).startswith("pretrained is an address with a user or query, and")
    line = f"{checkpoint} holds an adapter, and lora is not set: set it, or merge it"
    assert said(load_config(write()), checkpoint) == line
    # A layer that there is not, no regular expression, and the head's weight under another name.
    for layers in ("['wq']", "'*.q'", "['word_embeddings']"):
        config = load_config(path, [f"lora.target_modules={layers}"])
        assert said(config, str(base)).startswith(f"lora: target_modules {layers}: ")
    assert "is not of this model" in said(load_config(path, ["lora.r=3"]), checkpoint)
    moved = read(checkpoint)
    moved["adapter_config"]["base_model_name_or_path"] = "gone.pth"
    torch.save(moved, tmp_path / "moved.pth")
    del moved["config"]["image_size"]
    torch.save({**moved, "adapter_config": {"base_model_name_or_path": str(base)}}, bare)
    with pytest.raises(ValueError, match="an adapter without its run's configuration"):
        captioner_of(str(bare))
    line = "moved.pth holds an adapter of gone.pth, but checkpoint gone.pth does not exist"
    assert said(load_config(path), str(tmp_path / "moved.pth")).endswith(line)
    assert merge.main([str(base), str(tmp_path / "x.pth")]) == 2
    assert capsys.readouterr().err == f"error: {base} holds whole weights, no adapter\n"
    assert json.dumps(load_config(path).model_dump()["lora"])  # a checkpoint keeps it
