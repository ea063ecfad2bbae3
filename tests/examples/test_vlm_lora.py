"""The recipe fine-tunes a tiny vision-language model on generated photos."""

import importlib
import json

import pytest
import torch
import transformers
from PIL import Image

from smile import Objective
from tests.smile.hf_steps import each_alone
from tests.vlm import folders

for library in ("trl", "peft", "accelerate", "datasets"):
    pytest.importorskip(library, reason="what TRL needs is in the tests from Python 3.11")

# Of different sizes, so that they are cut into different numbers of tiles.
PHOTOS = {
    (48, 24): "a red disc on sand",
    (24, 48): "a small blue block on the grass",
    (40, 40): "a disc",
    (16, 48): "two blue block above a small red disc",
}


def test_the_adapter_is_trained_on_the_photos_by_the_objective(tmp_path, capsys):
    from peft import PeftModel

    load = transformers.AutoModelForImageTextToText.from_pretrained
    model, photos, output = (tmp_path / name for name in ("model", "photos", "adapter"))
    folders.write("Idefics3ForConditionalGeneration", str(model))
    photos.mkdir()
    lines = []
    for number, (size, caption) in enumerate(PHOTOS.items()):
        Image.effect_noise(size, 80).save(photos / f"{number}.png")
        # As captioning.caption writes it.
        lines.append(json.dumps({"image": f"{number}.png", "caption": caption, "score": -1.5}))
    (photos / "captions.jsonl").write_text("\n".join(lines))
    arguments = [str(photos), "--model", str(model), "--output", str(output), "--steps", "1"]
    trainer = importlib.import_module("examples.vlm_lora").main([*arguments, "--photos", "4"])
    printed = capsys.readouterr().out
    assert "before: " in printed and "after: " in printed
    # What it began with: the adapter does nothing yet, and the step has all photos.
    rows = [trainer.data_collator([row]) for row in trainer.train_dataset]
    for row, caption in zip(rows, PHOTOS.values()):
        row["pixel_values"] = row["pixel_values"].double()
        text = trainer.processing_class.decode(row["labels"][row["labels"] != -100])
        assert text.strip() == f"{caption} <end>"
    objective = Objective({"mle": 0.01, "smile": 0.99})
    expected, _ = each_alone(load(model, dtype=torch.float64), rows, objective)
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(expected, rel=1e-4)
    loaded = PeftModel.from_pretrained(load(model), output)
    changed = [value for key, value in loaded.named_parameters() if "lora_B" in key]
    assert changed and all(value.abs().max() > 0 for value in changed)
    assert not [key for key, _ in loaded.named_parameters() if "lora" in key and "vision" in key]
