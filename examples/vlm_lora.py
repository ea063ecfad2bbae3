"""Fine-tune a vision-language model with SMILE on captioned photos, by TRL and LoRA.

    pip install . trl peft pillow torchvision    # in a checkout of this repository
    python examples/vlm_lora.py photos --output adapter

photos/captions.jsonl has a line for each caption, {"image": "a.jpg", "caption": "a red disc"}. The
program prints the model's caption of the first photo before and after the training. It saves LoRA's
adapter in the folder of --output; `PeftModel.from_pretrained(model, "adapter")` loads the adapter.
"""

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset, Image
from peft import LoraConfig
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl import SFTConfig, SFTTrainer

from smile.hf import SmileLossMixin

PROMPT = "Describe the photo in detail."


class SmileSFTTrainer(SmileLossMixin, SFTTrainer):
    """TRL's trainer, which minimises the `objective` given below instead of its own loss."""


def read_rows(folder: Path) -> Dataset:
    """Return a row for each caption, with the columns that TRL's collator for images reads."""
    lines = (folder / "captions.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [
        {
            "image": str(folder / row["image"]),
            "prompt": [{"role": "user", "content": PROMPT}],
            "completion": [{"role": "assistant", "content": row["caption"]}],
        }
        for row in map(json.loads, filter(str.strip, lines))
    ]
    return Dataset.from_list(rows).cast_column("image", Image(mode="RGB"))


@torch.inference_mode()
def describe(model, processor, photo) -> str:
    content = [{"type": "image"}, {"type": "text", "text": PROMPT}]
    messages = [{"role": "user", "content": content}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    # The chat template has added the special tokens.
    inputs = processor(text=text, images=[photo], add_special_tokens=False, return_tensors="pt")
    inputs = inputs.to(model.device)
    tokens = model.eval().generate(**inputs, max_new_tokens=64, do_sample=False)[0]
    return processor.decode(tokens[inputs.input_ids.size(1) :], skip_special_tokens=True).strip()


def main(argv=None) -> SmileSFTTrainer:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="photos, and captions.jsonl")
    parser.add_argument("--model", default="HuggingFaceTB/SmolVLM-256M-Instruct")
    parser.add_argument("--output", default="adapter")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--photos", type=int, default=8, help="in one step")
    flags = parser.parse_args(argv)
    rows = read_rows(flags.folder)
    processor = AutoProcessor.from_pretrained(flags.model)
    trainer = SmileSFTTrainer(
        AutoModelForImageTextToText.from_pretrained(flags.model, dtype=torch.float32),
        SFTConfig(
            flags.output,
            learning_rate=1e-4,
            max_steps=flags.steps,
            per_device_train_batch_size=flags.photos,
            bf16=torch.cuda.is_available(),
            max_length=None,  # a photo's tokens must not be cut
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=rows,
        processing_class=processor,
        peft_config=LoraConfig(r=16, target_modules=r".*(text|language)_model.*_proj"),
        objective={"mle": 0.01, "smile": 0.99},
    )
    print("before:", describe(trainer.model, processor, rows[0]["image"]))
    trainer.train()
    trainer.save_model(flags.output)
    print("after:", describe(trainer.model, processor, rows[0]["image"]))
    return trainer


if __name__ == "__main__":
    main()
