"""Gives captioners LoRA: finds the weights of the base, and adds or merges an adapter."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from BLIP.adapter import add_adapter, is_blip, load_trained_state, merge_adapter, read_base
from BLIP.checkpoint import ADAPTER, check_finite
from captioning.captioners.registry import package_of
from captioning.config import Config
from captioning.runtime.errors import UserError

Content = Mapping[str, Any]  # of a checkpoint


def base_of(config: Config, content: Content, name: str) -> tuple[Content, str]:
    """Return content and name of the weights that LoRA adapts; {} if `build` loads them.

    content, name: the checkpoint, which has an adapter or, for a new adapter, these weights. Raises
    UserError and CheckpointError.
    """
    key = getattr(package_of(config.model), "LORA_BASE", "pretrained")
    if key == "pretrained":
        return read_base(content, name, config.trust_checkpoint)
    if content and ADAPTER not in content:
        raise UserError(
            f"{name} holds a whole model, but lora adapts the model given by {key}: export {name} "
            f"with python -m captioning.export, and set {key} to the result"
        )
    return {}, getattr(config, key).removeprefix("hf://")


def adapt(config: Config, captioner: nn.Module, content: Content, name: str, base: str) -> str:
    """Add the layers of `lora` and load their weights, or merge an adapter; return a log line.

    - captioner: it has the weights of the base
    - content, name: the checkpoint, which may have an adapter; {} if there is none
    - base: the name of the base

    Without `lora`, the adapter of the checkpoint is merged. Raises ValueError.
    """
    package, lora = package_of(config.model), config.lora
    module = captioner.get_submodule(package.LORA_MODULE)
    if lora is None:
        merge_adapter(module, content, name)
        return f"loaded {name}: its adapter is merged into {base}"
    adapter = {
        "peft_type": "LORA",
        "r": lora.r,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": lora.target_modules,
        "exclude_modules": list(package.LORA_EXCLUDED),
        "base_model_name_or_path": base,
    }
    add_adapter(module, adapter, f"lora with target_modules {lora.target_modules!r}")
    if not {ADAPTER, "model"} <= content.keys():
        return f"loaded {base}: its weights are frozen, lora's are new"
    check_finite(content["model"], name)
    load_trained_state(captioner, content["model"], name)
    return f"loaded {name}: every key matched"


def base_settings(content: Content, name: str) -> Content:
    """Return the content of an adapter's base or, if it is not BLIP, only its configuration."""
    if is_blip(content["model"]):
        return read_base(content, name)[0]
    base = content[ADAPTER].get("base_model_name_or_path")
    values = {"model": "vlm", "vlm": base, "augmentation": "none", "output_dir": "output"}
    return {"config": {"image_root": "", "ann_root": "", **values}}
