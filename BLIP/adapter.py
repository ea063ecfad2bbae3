"""Adds LoRA (arXiv 2106.09685) to a model through peft, and reads, saves and merges its weights.

A checkpoint of a model with an adapter has only the adapter's weights, under peft's names, and
peft's configuration under ADAPTER.
"""

import json
import re
from collections.abc import Mapping
from textwrap import shorten
from typing import Any, Optional

from torch import Tensor, nn

from BLIP.checkpoint import (
    ADAPTER,
    HF_NAMES,
    CheckpointError,
    check_finite,
    path_beside,
    read_checkpoint,
    rename,
)

NAME = "default"  # peft's name for an adapter that was given no name
PREFIX = "base_model.model."  # peft's files put this before a module's parameter names


def read_base(
    content: Mapping[str, Any], name: str, trust_checkpoint: bool = False
) -> tuple[dict, str]:
    """Return the content and the name of the checkpoint that has a checkpoint's whole weights.

    It is the one that an adapter adapts; without an adapter it is the checkpoint itself.
    content: the result of `read_checkpoint`. name: the checkpoint, for messages. Raises
    CheckpointError.
    """
    if ADAPTER not in content:
        return content, name
    base = content[ADAPTER].get("base_model_name_or_path")
    if not base:
        raise CheckpointError(f"{name} has an adapter, but not the path of its base weights")
    base = path_beside(base, name)
    try:
        return read_checkpoint(base, trust_checkpoint), base
    except ValueError as error:
        raise CheckpointError(f"{name} has an adapter of {base}, but {error}") from error


def is_blip(state: Mapping[str, Tensor]) -> bool:
    """Return whether a state dict is of BLIP or of an adapter of BLIP, also of transformers'."""
    return any("text_decoder.bert." in key or "visual_encoder.blocks." in key for key in state)


def add_adapter(module: nn.Module, config: Mapping[str, Any], name: str) -> None:
    """Freeze a module and add the layers of a new adapter in place.

    - config: peft's configuration
    - name: where the configuration comes from, for messages

    The module gets the method `merge_and_unload`, which merges the adapter in place and returns the
    module. Raises ValueError without peft, and for a configuration that does not fit the module.
    """
    try:
        from peft import PeftConfig, get_peft_model
    except ImportError as error:
        raise ValueError(f"{name} needs peft: pip install peft") from error
    # peft would warn of a base with another name, and wrap a model by its task.
    values = {**config, "base_model_name_or_path": None, "task_type": None}
    try:
        peft_config = PeftConfig.from_peft_type(**values)
        peft_model = get_peft_model(module, peft_config)
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise ValueError(f"{name} does not fit this model: {shorten(str(error), 200)}") from error
    peft_config.base_model_name_or_path = config["base_model_name_or_path"]
    module.merge_and_unload = peft_model.merge_and_unload


def adapted_module(model: nn.Module) -> Optional[nn.Module]:
    """Return the module that has an adapter, which may be the model; None if there is none."""
    return next((module for module in model.modules() if hasattr(module, "merge_and_unload")), None)


def adapter_config(model: nn.Module) -> dict[str, Any]:
    """Return {ADAPTER: peft's configuration, as JSON values}; {} if there is no adapter."""
    module = adapted_module(model)
    if module is None:
        return {}
    return {ADAPTER: json.loads(json.dumps(module.peft_config[NAME].to_dict(), default=list))}


def trained_state(model: nn.Module, **options: Any) -> dict[str, Tensor]:
    """Return a model's state dict; with an adapter only the adapter's, under peft's names.

    options: those of `nn.Module.state_dict`.
    """
    module = adapted_module(model)
    if module is None:
        return model.state_dict(**options)
    from peft import get_peft_model_state_dict

    state = module.state_dict(**options)
    state = get_peft_model_state_dict(module, state, save_embedding_layers=False)
    return {PREFIX + name: tensor for name, tensor in state.items()}


def load_trained_state(model: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Load a result of `trained_state`. name: the checkpoint, for messages.

    Raises the errors of `load_state_dict` and, with an adapter, CheckpointError.
    """
    module = adapted_module(model)
    if module is None:
        model.load_state_dict(state)
        return
    from peft import set_peft_model_state_dict

    try:
        result = set_peft_model_state_dict(
            module, {key.removeprefix(PREFIX): tensor for key, tensor in state.items()}
        )
    except RuntimeError as error:
        reason = shorten(str(error), 200)
        raise CheckpointError(f"{name} has an adapter of another model: {reason}") from error
    wrong = [*result.unexpected_keys, *(key for key in result.missing_keys if "lora_" in key)]
    if wrong:
        raise CheckpointError(
            f"{name} has an adapter of another model: {len(wrong)} keys differ, such as {wrong[0]}"
        )


def merge_adapter(module: nn.Module, content: Mapping[str, Any], name: str) -> None:
    """Merge the adapter of a checkpoint into a module's weights, in place. Raises ValueError.

    content: the result of `read_checkpoint`. name: the checkpoint, for messages.
    """
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    config, state = content[ADAPTER], content["model"]
    if is_blip(module.state_dict()):  # transformers names some of its layers differently
        state = {rename(key, HF_NAMES): tensor for key, tensor in state.items()}
        layers = {key.removeprefix(PREFIX).rpartition(".lora_")[0] for key in state}
        config = {**config, "target_modules": sorted(layers)}
    add_adapter(module, config, f"the adapter of {name}")
    check_finite(state, name)
    load_trained_state(module, state, name)
    module.merge_and_unload()
    del module.merge_and_unload
    for parameter in trainable:  # peft has frozen them
        parameter.requires_grad_()
