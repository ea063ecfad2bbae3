"""Exports a run's model for `from_pretrained` of transformers, for vLLM or for peft.

    python -m vlm.export output/vlm_coco/checkpoint_best.pth output/merged
    python -m vlm.export output/vlm_coco/checkpoint_best.pth output/adapter --adapter

The first command merges LoRA into the weights and saves the processor with the model. With
--adapter, only the LoRA adapter is saved, for `PeftModel.from_pretrained`.
"""

import argparse
import pickle
import shutil
import sys
from pathlib import Path
from textwrap import shorten
from typing import Any, Optional

import torch
from safetensors import SafetensorError
from torch import nn

from adapters.card import NAME, license_of, write_model_card
from adapters.lora import Lora, add_lora, load_adapter_state
from vlm.library import Parts, load_model, load_parts


def trained_model(checkpoint: str) -> tuple[nn.Module, Parts, dict[str, Any]]:
    """Return the model of a checkpoint, the model's `Parts`, and the run's configuration.

    The model is in evaluation mode. If the run used LoRA, the adapter is not merged. Raises
    ValueError.
    """
    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True)
        config, state = content["config"], content["model"]
        name, lora = config["vlm"], config["lora"]
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = getattr(error, "strerror", None) or "it is not a checkpoint"
        raise ValueError(f"{checkpoint} cannot be read: {reason}") from error
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{checkpoint} is not a checkpoint of model vlm") from error
    if name is None:
        raise ValueError(
            f"{checkpoint} is a checkpoint of model {config.get('model')}, not of model vlm"
        )
    model = load_model(name, pretrained=lora is not None)
    try:
        if lora is None:
            model.load_state_dict({k.removeprefix("model."): v for k, v in state.items()})
        else:
            model = add_lora(model, Lora(**lora))
            load_adapter_state(model, state)
    except RuntimeError as error:
        raise ValueError(f"{checkpoint} does not fit {name}: {shorten(str(error), 200)}") from error
    return model.eval(), load_parts(name), config


def export(checkpoint: str, folder: Path, adapter: bool, license: Optional[str] = None) -> str:
    """Write the folder and return a line that describes it. Raises ValueError.

    folder: a new or an empty folder. adapter: write only the LoRA adapter. license: the license on
    the model card; None for the license of the base model.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder: give a new folder")
    model, parts, config = trained_model(checkpoint)
    lora = config["lora"]
    if adapter and lora is None:
        raise ValueError(f"{checkpoint} has a whole model, not an adapter: leave out --adapter")
    if lora is not None and not adapter:
        model = model.merge_and_unload()
    license = license or license_of(parts.name)
    saved = [model]
    if not adapter:
        saved += [parts.processor] if parts.processor else [parts.image_processor, parts.tokenizer]
    library = "peft" if adapter else "transformers"
    try:
        for part in saved:
            part.save_pretrained(folder)
        (folder / NAME).unlink(missing_ok=True)  # peft writes a card without content
        write_model_card(folder, checkpoint, config, license, library)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, SafetensorError):  # such as of a full disk
            raise ValueError(f"cannot write {folder}: {shorten(str(error), 100)}") from error
        raise
    if adapter:
        return f"{folder} holds the adapter of {parts.name}"
    return f"{folder} holds the model and its processor"


def main(argv=None) -> int:
    """Run the program. Return 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(
        "python -m vlm.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", help="a checkpoint of a run of model vlm")
    parser.add_argument("folder", type=Path, help="the folder to write")
    parser.add_argument("--adapter", action="store_true", help="write only the LoRA adapter")
    parser.add_argument("--license", help="for the model card; default: the base model's")
    arguments = vars(parser.parse_args(argv))
    try:
        print(export(**arguments))
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
