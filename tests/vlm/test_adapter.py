"""LoRA: what learns, what is saved, and what other programs load of it."""

import json

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")
pytest.importorskip("peft", reason="peft is in the tests from Python 3.10")

from safetensors import SafetensorError

from adapters.lora import Lora
from captioning.config import load_config
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError
from tests.programs import refused, run_program
from tests.vlm.batches import CAPTIONS
from vlm.batch import ImageBatch
from vlm.library import load_model
from vlm.prompt import load_prompt_processor

NAME = "Idefics3ForConditionalGeneration"
LORA = {"r": 2, "alpha": 4, "dropout": 0.0, "target_modules": "all-linear"}


@pytest.fixture
def config(vlm_folder, tmp_path):
    folder, prompt = vlm_folder(NAME)
    path = tmp_path / "lora.yaml"
    path.write_text(
        f"model: vlm\nvlm: {folder}\nprompt: {prompt}\nlora: {json.dumps(LORA)}\n"
        "augmentation: none\nimage_root: .\nann_root: .\nobjective: smile\nmax_tokens: 20\n"
    )
    return load_config(path)


def checkpoint_of(captioner, config, folder):
    content = {"model": captioner.state_dict(), "config": config.model_dump()}
    torch.save({**content, **captioner.saved_beside_weights()}, folder / "checkpoint_best.pth")
    return folder / "checkpoint_best.pth"


@pytest.fixture
def trained(config, vlm_photos, tmp_path):
    captioner, _ = captioner_from(config, None)
    image = ImageBatch([captioner.prompt_processor(photo) for photo in vlm_photos])
    ((parameters, _),) = captioner.parameter_groups()
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    for _ in range(2):  # the first one moves half of the layers
        captioner.train()(image, CAPTIONS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return captioner.eval(), image, checkpoint_of(captioner, config, tmp_path)


@torch.no_grad()
def logits_of(model, batch):
    return model.eval()(**batch).logits


def test_the_layers_of_low_rank_learn_and_nothing_else(trained, vlm_folder):
    captioner, _, _ = trained
    before = load_model(vlm_folder(NAME)[0], pretrained=True).state_dict()
    for name, value in captioner.model.named_parameters():
        plain = name.replace(".base_layer", "")
        assert value.requires_grad == ("lora_" in name)
        assert plain not in before or value.equal(before[plain])
    assert all(value.abs().max() > 0 for value in captioner.state_dict().values())


def test_the_checkpoint_is_the_adapter_and_is_loaded_again(trained, config):
    captioner, image, path = trained
    content = torch.load(path, weights_only=True)
    assert all(".lora_A.weight" in key or ".lora_B.weight" in key for key in content["model"])
    assert content["adapter_config"]["r"] == 2
    again, told = captioner_from(config, str(path))
    assert told.endswith("every key matched")
    batch, _ = captioner.rows(image, CAPTIONS)
    assert logits_of(again.model, batch).equal(logits_of(captioner.model, batch))


def test_peft_loads_the_adapter(trained, vlm_folder, tmp_path):
    from peft import PeftModel

    captioner, image, path = trained
    code, out, _ = run_program("vlm.export", path, tmp_path / "adapter", "--adapter")
    assert code == 0 and "holds the adapter of" in out
    base = load_model(vlm_folder(NAME)[0], pretrained=True)
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter")
    batch, _ = captioner.rows(image, CAPTIONS)
    torch.testing.assert_close(logits_of(loaded, batch), logits_of(captioner.model, batch))


def test_the_merged_model_is_a_model_of_transformers(trained, tmp_path):
    captioner, image, path = trained
    folder = str(tmp_path / "merged")
    assert run_program("vlm.export", path, folder).code == 0
    merged = load_model(folder, pretrained=True)
    load_prompt_processor(folder, "describe the image")  # the processor is there, too
    batch, _ = captioner.rows(image, CAPTIONS)
    expected = logits_of(captioner.model, batch)
    torch.testing.assert_close(logits_of(merged, batch), expected, rtol=1e-4, atol=1e-5)
    assert not any("lora" in name for name, _ in merged.named_parameters())
    for source, target, line in (
        (path, folder, f"{folder} exists and is not an empty folder: give a new folder"),
        (tmp_path, f"{folder}2", f"{tmp_path} cannot be read: Is a directory"),
    ):
        refused("vlm.export", source, target, part=f"error: {line}")


def test_an_export_that_cannot_be_written_leaves_nothing(trained, tmp_path, monkeypatch):
    def fail(*_):
        raise SafetensorError("no space left")

    folder = tmp_path / "adapter"
    monkeypatch.setattr("vlm.export.write_model_card", fail)
    code, _, err = run_program("vlm.export", trained[2], folder, "--adapter")
    assert (code, err) == (2, f"error: cannot write {folder}: no space left\n")
    assert not folder.exists()


def test_an_adapter_of_a_model_in_four_bits_is_merged_into_whole_weights(
    config, vlm_photos, vlm_folder, tmp_path
):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is an option")
    config = config.model_copy(update={"lora": Lora(**{**LORA, "load_in_4bit": True})})
    captioner, _ = captioner_from(config, None)
    image = ImageBatch([captioner.prompt_processor(photo) for photo in vlm_photos])
    captioner.train()(image, CAPTIONS).loss.backward()
    learns = {name for name, p in captioner.named_parameters() if p.grad is not None}
    assert learns and all("lora_" in name for name in learns)
    path = checkpoint_of(captioner, config, tmp_path)
    assert captioner_from(config, str(path))[1].endswith("every key matched")
    assert run_program("vlm.export", path, tmp_path / "merged").code == 0
    merged = load_model(str(tmp_path / "merged"), pretrained=True).state_dict()
    expected = load_model(vlm_folder(NAME)[0], pretrained=True).state_dict()
    torch.testing.assert_close(merged, expected)  # it has learned nothing


def test_four_bits_without_their_library_are_one_line(config, monkeypatch):
    monkeypatch.setattr("vlm.library.find_spec", lambda name: None)
    lora = Lora(**{**LORA, "load_in_4bit": True})
    line = "lora.load_in_4bit needs bitsandbytes: pip install bitsandbytes"
    with pytest.raises(UserError, match=f"^{line}$"):
        captioner_from(config.model_copy(update={"lora": lora}), None)


def test_whole_weights_are_no_start_for_an_adapter(config, tmp_path):
    plain, _ = captioner_from(config.model_copy(update={"lora": None}), None)
    torch.save({"model": plain.state_dict()}, tmp_path / "whole.pth")
    with pytest.raises(UserError, match=r"whole.pth holds a whole model, but lora adapts "):
        captioner_from(config, str(tmp_path / "whole.pth"))
