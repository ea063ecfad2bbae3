"""LoRA for BLIP: what is trained, saved, resumed and exported."""

import pytest
import torch
from safetensors import SafetensorError

pytest.importorskip("peft", reason="peft is in the tests from Python 3.10")

from BLIP import merge
from BLIP.from_checkpoint import captioner_of
from captioning.config import load_config
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError
from tests.programs import raises_line, refused, run_program
from tests.tiny import TINY_RUN

LORA = "lora={r: 2, alpha: 8, dropout: 0.1}"


@pytest.fixture(scope="module")
def path(scenes, tmp_path_factory):
    path = tmp_path_factory.mktemp("lora") / "tiny.yaml"
    keys = "device: cpu\nlr_schedule: exponential\neval_every: 9\nmetrics: [length]\n"
    path.write_text(TINY_RUN.format(data=scenes) + keys)
    return path


@pytest.fixture(scope="module")
def base(path, tmp_path_factory):
    captioner, _ = captioner_from(load_config(path), None)
    base = tmp_path_factory.mktemp("base") / "base.pth"
    torch.save({"model": captioner.state_dict()}, base)
    return base


@pytest.fixture(scope="module")
def adapted(path, base):
    return load_config(path, [LORA, f"pretrained={base}"])


@pytest.fixture(scope="module")
def runs(path, base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, epochs in (("stopped", 1), ("stopped", 2), ("whole", 2)):
        arguments = ["--config", path, "--output_dir", folder / name, LORA, f"pretrained={base}"]
        arguments += [f"max_epoch={epochs}", "init_lr=1e-2"]
        assert run_program("captioning.train", *arguments).code == 0
    return [folder / name / "checkpoint_01.pth" for name in ("stopped", "whole")]


@pytest.fixture
def checkpoint(runs):
    return str(runs[1])


def read(path):
    return torch.load(path, weights_only=True)


def logits(captioner):
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return captioner.eval().predictions(image, [["a red disc"]])[0]


def test_a_resumed_run_is_bit_identical(runs):
    found, expected = (read(path)["model"] for path in runs)
    assert found.keys() == expected.keys()
    assert all(found[key].equal(value) for key, value in expected.items())


def test_a_checkpoint_holds_only_the_adapter_of_encoder_and_decoder(checkpoint, base):
    content = read(checkpoint)
    names = [key.removeprefix("base_model.model.") for key in content["model"]]
    assert all(key.endswith((".lora_A.weight", ".lora_B.weight")) for key in names)
    assert {key.split(".")[0] for key in names} == {"visual_encoder", "text_decoder"}
    assert not any("predictions.decoder" in key for key in names)
    assert all(value.abs().max() > 0 for value in content["model"].values())  # all have learned
    assert content["adapter_config"]["base_model_name_or_path"] == str(base)


def test_merged_weights_are_those_of_the_formula_and_caption_the_same(
    path, adapted, checkpoint, base, tmp_path
):
    target = tmp_path / "merged.pth"
    assert run_program("BLIP.merge", checkpoint, target).code == 0
    merged, before, adapter = read(target)["model"], read(base)["model"], read(checkpoint)["model"]
    assert merged.keys() == before.keys()
    for key, value in before.items():
        name = f"base_model.model.{key.removesuffix('.weight')}.lora_"
        if f"{name}A.weight" in adapter:  # alpha / r is 4
            value = value + 4 * adapter[f"{name}B.weight"] @ adapter[f"{name}A.weight"]
        torch.testing.assert_close(merged[key], value)
    captioner, line = captioner_from(adapted, checkpoint)
    assert line.endswith("every key matched")
    start, plain = (captioner_from(load_config(path), str(each))[0] for each in (base, target))
    torch.testing.assert_close(logits(captioner), logits(plain), rtol=1e-4, atol=1e-5)
    assert not logits(captioner).allclose(logits(start), atol=1e-3)
    # The copy for inference is merged, and the original unchanged.
    kept = {key: value.clone() for key, value in captioner.named_parameters()}
    copy = captioner.for_inference(torch.float32, False)
    torch.testing.assert_close(logits(copy), logits(plain), rtol=1e-4, atol=1e-5)
    assert all(value.equal(kept[key]) for key, value in captioner.named_parameters())
    torch.testing.assert_close(logits(captioner_of(checkpoint)), logits(plain))


def test_peft_loads_the_adapter(path, adapted, checkpoint, base, tmp_path):
    from peft import PeftModel

    assert run_program("BLIP.merge", checkpoint, tmp_path / "adapter", "--adapter").code == 0
    plain, _ = captioner_from(load_config(path), str(base))
    PeftModel.from_pretrained(plain, tmp_path / "adapter")
    expected, _ = captioner_from(adapted, checkpoint)
    torch.testing.assert_close(logits(plain), logits(expected))


def test_an_adapter_that_cannot_be_written_is_one_line_and_leaves_nothing(
    checkpoint, tmp_path, monkeypatch
):
    def full_disk(*_):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(merge, "save_file", full_disk)
    folder = tmp_path / "adapter"
    line = f"error: cannot write {folder}: No space left on device"
    for _ in range(2):  # the second call finds no folder of the first
        refused("BLIP.merge", checkpoint, folder, "--adapter", part=line)
    assert not list(tmp_path.iterdir())


def test_mistakes_with_lora_are_one_line(path, checkpoint, base, tmp_path):
    def message(flags, weights):
        with raises_line(UserError) as error:
            captioner_from(load_config(path, [*flags]), weights)
        return str(error.value)

    line = "lora is set, but pretrained is not: set pretrained to the base weights"
    assert message([LORA], None) == line
    signed = [LORA, "pretrained=https://host/a.pth?SECRET"]
    assert message(signed, str(base)).startswith("pretrained is an address with a user or a query")
    line = f"{checkpoint} has an adapter, but lora is not set: set lora, or merge the adapter"
    assert message([], checkpoint) == line
    flags = [LORA, f"pretrained={base}"]
    # A layer that does not exist, no regular expression, and another name of the head's weight.
    for layers in ("['wq']", "'*.q'", "['word_embeddings']"):
        found = message([*flags, f"lora.target_modules={layers}"], str(base))
        assert found.startswith(f"lora: target_modules {layers}: ")
    assert "does not fit this model" in message([*flags, "lora.r=3"], checkpoint)
    moved = read(checkpoint)
    moved["adapter_config"]["base_model_name_or_path"] = "gone.pth"
    torch.save(moved, tmp_path / "moved.pth")
    line = "moved.pth has an adapter of gone.pth, but checkpoint gone.pth does not exist"
    assert message(flags, str(tmp_path / "moved.pth")).endswith(line)
    del moved["config"]["image_size"]
    moved["adapter_config"]["base_model_name_or_path"] = str(base)
    torch.save(moved, tmp_path / "bare.pth")
    with pytest.raises(ValueError, match="an adapter, but not its run's configuration"):
        captioner_of(str(tmp_path / "bare.pth"))
    line = f"error: {base} has whole weights, not an adapter"
    refused("BLIP.merge", base, tmp_path / "x.pth", part=line)
