"""The recipe fine-tunes a tiny vision-language model on generated photos."""

import importlib
import json

import pytest
import torch
import transformers
from PIL import Image

from smile import Objective
from smile.hf import use_smile
from tests.smile import tiny_vlm
from tests.smile.hf_steps import each_alone, gradients

for library in ("trl", "peft", "accelerate", "datasets"):
    pytest.importorskip(library, reason="what TRL needs is in the tests from Python 3.11")

# Of different sizes, so that they are cut into different numbers of tiles.
PHOTOS = {
    (48, 24): "a red disc on sand",
    (24, 48): "a small blue block on the grass",
    (40, 40): "a disc",
    (16, 48): "two blue blocks and a small red disc",
}


@pytest.fixture(scope="module")
def example():
    return importlib.import_module("examples.vlm_lora")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("model"))
    tiny_vlm.write(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder as captioning.caption writes it."""
    folder, lines = tmp_path_factory.mktemp("photos"), []
    for number, (size, caption) in enumerate(PHOTOS.items()):
        Image.effect_noise(size, 80).convert("RGB").save(folder / f"{number}.png")
        lines.append(json.dumps({"image": f"{number}.png", "caption": caption, "score": -1.5}))
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder


OBJECTIVE = Objective({"mle": 0.01, "smile": 0.99})
load = transformers.AutoModelForImageTextToText.from_pretrained


def alone(example, packing, model, photos):
    rows = [dict(packing.row(**row)) for row in example.read_rows(photos)]
    for row in rows:
        del row["position_ids"]
        row["pixel_values"] = row["pixel_values"].double()
    return each_alone(model, rows, OBJECTIVE)


def test_a_packed_row_is_each_photo_alone(example, model_folder, photos):
    packing = example.Packing(transformers.AutoProcessor.from_pretrained(model_folder))
    expected = alone(example, packing, load(model_folder, dtype=torch.float64), photos)
    row = packing(example.read_rows(photos))
    assert len(row["input_ids"]) == 1 and (row["position_ids"] == 0).sum() == len(PHOTOS)
    text = packing.processor.tokenizer.decode(row["labels"][row["labels"] != -100])
    assert text == "".join(f" {caption}<end_of_utterance>" for caption in PHOTOS.values())
    row["pixel_values"] = row["pixel_values"].double()
    model = load(model_folder, dtype=torch.float64).train()
    loss = use_smile(model, OBJECTIVE)(**row).loss
    loss.backward()
    torch.testing.assert_close((loss.item(), gradients(model)), expected)


def test_the_recipe(example, model_folder, photos, tmp_path, capsys):
    from peft import PeftModel

    output = tmp_path / "adapter"
    arguments = ["--model", model_folder, "--output", str(output), "--steps", "1", "--photos", "4"]
    trainer = example.main([str(photos), *arguments])
    printed = capsys.readouterr().out
    assert "before: " in printed and "after: " in printed
    # What it began with: the adapter does nothing yet, and the step has all photos.
    packing = example.Packing(transformers.AutoProcessor.from_pretrained(model_folder))
    expected, _ = alone(example, packing, load(model_folder, dtype=torch.float64), photos)
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(expected, rel=1e-4)
    loaded = PeftModel.from_pretrained(load(model_folder), output)
    changed = [value for key, value in loaded.named_parameters() if "lora_B" in key]
    assert changed and all(value.abs().max() > 0 for value in changed)
    assert not [key for key, _ in loaded.named_parameters() if "lora" in key and "vision" in key]
