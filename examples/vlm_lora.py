"""Fine-tune a vision-language model with SMILE on a folder of captioned photos: TRL, LoRA.

    pip install . trl peft pillow torchvision    # in a checkout of this repository
    python examples/vlm_lora.py photos --output adapter

photos/captions.jsonl has a line for each caption, {"image": "a.jpg", "caption": "a red disc"}. The
first photo's caption is printed before and after the training. The result is loaded by
`PeftModel.from_pretrained(model, "adapter")`.

Several photos and their captions are packed into one row, without an attention mask. The position
ids start again with each photo. They show where it begins, so that SMILE's subset is of a single
caption and a caption attends only to its own photo.
"""

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from PIL import Image, ImageOps
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl import SFTConfig, SFTTrainer

from smile import Objective
from smile.hf import SmileLossMixin

PROMPT = [{"type": "image"}, {"type": "text", "text": "Describe the photo in detail."}]
# `Packing` can concatenate the inputs of these models: ids (1, length), pixels (1, tiles, ...).
CONCATENABLE = ("idefics3", "smolvlm")


class SmileSFTTrainer(SmileLossMixin, SFTTrainer):
    """TRL's trainer, but it minimises SMILE."""


def read_rows(folder: Path) -> list[dict[str, str]]:
    lines = (folder / "captions.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line.strip()]
    return [{"photo": str(folder / row["image"]), "caption": row["caption"]} for row in rows]


class Packing:
    """Makes one row of several photos, each followed by its caption. TRL packs only text."""

    def __init__(self, processor):
        self.processor = processor
        self.messages = [{"role": "user", "content": PROMPT}]
        self.prompt = processor.apply_chat_template(self.messages, add_generation_prompt=True)

    def prompt_inputs(self, photo: str) -> dict[str, torch.Tensor]:
        """Return the prompt about a photo: ids (1, length), pixels (1, tiles, ...)."""
        image = ImageOps.exif_transpose(Image.open(photo)).convert("RGB")
        # The chat template has added the special tokens.
        options = {"add_special_tokens": False, "return_tensors": "pt"}
        return self.processor(text=self.prompt, images=[image], **options)

    def answer_ids(self, caption: str) -> torch.Tensor:
        """Return the ids (1, length) of a caption as the assistant's turn, including its end."""
        answer = {"role": "assistant", "content": [{"type": "text", "text": caption}]}
        text = self.processor.apply_chat_template([*self.messages, answer])[
            len(self.prompt) :
        ].rstrip()
        options = {"add_special_tokens": False, "return_tensors": "pt"}
        return self.processor.tokenizer(text, **options)["input_ids"]

    def row(self, photo: str, caption: str) -> dict[str, torch.Tensor]:
        """Return the row of a single photo, with labels for its caption and position ids."""
        inputs, answer = self.prompt_inputs(photo), self.answer_ids(caption)
        prompt = inputs["input_ids"]
        inputs["input_ids"] = torch.cat([prompt, answer], 1)
        inputs["labels"] = torch.cat([torch.full_like(prompt, -100), answer], 1)
        inputs["position_ids"] = torch.arange(prompt.size(1) + answer.size(1)).unsqueeze(0)
        return {name: value for name, value in inputs.items() if name != "attention_mask"}

    def __call__(self, examples: list[dict[str, str]]) -> dict[str, torch.Tensor]:
        rows = [self.row(**example) for example in examples]
        return {name: torch.cat([row[name] for row in rows], 1) for name in rows[0]}


@torch.inference_mode()
def describe(model, packing: Packing, photo: str) -> str:
    inputs = packing.prompt_inputs(photo).to(model.device)
    tokens = model.eval().generate(**inputs, max_new_tokens=64, do_sample=False)[0]
    caption = tokens[inputs["input_ids"].size(1) :]
    return packing.processor.decode(caption, skip_special_tokens=True).strip()


def main(argv=None) -> SmileSFTTrainer:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="photos, and captions.jsonl")
    parser.add_argument("--model", default="HuggingFaceTB/SmolVLM-256M-Instruct")
    parser.add_argument("--output", default="adapter")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--photos", type=int, default=8, help="in one row")
    parser.add_argument("--rank", type=int, default=16, help="of LoRA")
    flags = parser.parse_args(argv)
    rows, gpu = read_rows(flags.folder), torch.cuda.is_available()
    model = AutoModelForImageTextToText.from_pretrained(flags.model, dtype=torch.float32)
    if model.config.model_type not in CONCATENABLE:
        parser.error(f"{flags.model} is not a SmolVLM: adapt Packing to its pixel values")
    packing = Packing(AutoProcessor.from_pretrained(flags.model))
    quiet = {"save_strategy": "no", "report_to": "none"}
    # The data set is passed on as it is, since Packing makes the rows when it collates a batch.
    unprepared = {"dataset_kwargs": {"skip_prepare_dataset": True}, "remove_unused_columns": False}
    steps = {"max_steps": flags.steps, "per_device_train_batch_size": flags.photos, "bf16": gpu}
    arguments = SFTConfig(flags.output, learning_rate=1e-4, **steps, **unprepared, **quiet)
    trainer = SmileSFTTrainer(
        model,
        arguments,
        packing,
        Dataset.from_list(rows),
        processing_class=packing.processor,
        peft_config=LoraConfig(r=flags.rank, target_modules=r".*text_model.*_proj"),
        objective=Objective({"mle": 0.01, "smile": 0.99}),
    )
    print("before:", describe(trainer.model, packing, rows[0]["photo"]))
    trainer.train()
    trainer.save_model(flags.output)
    print("after:", describe(trainer.model, packing, rows[0]["photo"]))
    return trainer


if __name__ == "__main__":
    main()
