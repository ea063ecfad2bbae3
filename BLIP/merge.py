"""Merges a LoRA adapter into its base weights, or writes the adapter for peft.

    python -m BLIP.merge output/lora_coco/checkpoint_best.pth output/merged.pth
    python -m BLIP.merge output/lora_coco/checkpoint_best.pth output/adapter --adapter

The first command writes a file with the parameter names of the released checkpoints. The second
writes a folder, which `PeftModel.from_pretrained` loads into a captioner that has the base weights.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import torch
from safetensors.torch import save_file

from adapters import CONFIG
from adapters.card import UNKNOWN, write_model_card
from BLIP.checkpoint import CheckpointError, base_of, read_checkpoint
from BLIP.download import without_secrets
from BLIP.from_checkpoint import captioner_of, run_program
from BLIP.writing import atomic_write, write_json


def merge_checkpoint(checkpoint: str, target: Path, adapter: bool, license: str = UNKNOWN) -> str:
    """Write a new file or folder, and return a line that describes it. Raises ValueError.

    target: the file with the merged weights or, with `adapter`, the folder with only the LoRA
    adapter. license: the license on the folder's model card.
    """
    if target.exists():
        raise ValueError(f"{target} exists already: choose another path")
    content = read_checkpoint(checkpoint)
    base = base_of(content, without_secrets(checkpoint))
    if base is None:
        raise CheckpointError(f"{without_secrets(checkpoint)} has whole weights, not an adapter")
    target.parent.mkdir(parents=True, exist_ok=True)
    if adapter:
        with atomic_write(target) as folder:
            folder.mkdir()
            state = {name: tensor.contiguous() for name, tensor in content["model"].items()}
            save_file(state, folder / "adapter_model.safetensors", {"format": "pt"})
            write_json(content[CONFIG], folder / "adapter_config.json")
            write_model_card(folder, checkpoint, content["config"], license, "peft")
        return f"{target} holds the adapter of {base}"
    captioner = captioner_of(checkpoint)
    config = {**content["config"], "lora": None}
    with atomic_write(target) as file:
        torch.save({"model": captioner.state_dict(), "config": config}, file)
    return f"{target} holds {base} with the adapter merged into it"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program and return its exit code. argv: None reads the command line."""
    parser = argparse.ArgumentParser(
        "python -m BLIP.merge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", help="a checkpoint of a run of model blip with lora")
    parser.add_argument("target", type=Path, help="the .pth file to write, or the folder")
    parser.add_argument("--adapter", action="store_true", help="write only the LoRA adapter")
    parser.add_argument("--license", default=UNKNOWN, help="for the adapter's card")
    arguments = vars(parser.parse_args(argv))
    return run_program(lambda: merge_checkpoint(**arguments))


if __name__ == "__main__":
    sys.exit(main())
