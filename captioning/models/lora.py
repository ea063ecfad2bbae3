"""Adds LoRA (arXiv 2106.09685) to a captioner through peft, and reads and writes its weights.

A checkpoint of an adapted captioner has only the adapter's weights, under peft's names, and peft's
configuration under ADAPTER.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from torch import Tensor, nn

from BLIP.adapter import load_adapter
from BLIP.checkpoint import ADAPTER
from captioning.config.lora import Lora

NAME = "default"  # peft's name for an adapter that was given no name
PREFIX = "base_model.model."  # peft's files put this before a module's parameter names


def add_lora(module: nn.Module, lora: Lora, base: str, excluded: Sequence[str]) -> None:
    """Freeze a module and add low-rank layers in place.

    - base: the name of the frozen weights, which peft's configuration records
    - excluded: names of layers that get no adapter

    The module gets a method `merge_and_unload`, which merges the adapter in place and returns the
    module. Raises ValueError if peft is not installed, or if target_modules match no layer.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError("lora needs peft: pip install peft") from error
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        exclude_modules=list(excluded) or None,
    )
    try:
        peft_model = get_peft_model(module, config)
    except (ValueError, re.error) as error:  # peft reads a string as a regular expression
        raise ValueError(f"lora: target_modules {lora.target_modules!r}: {error}") from error
    config.base_model_name_or_path = base
    module.merge_and_unload = peft_model.merge_and_unload


def adapted_module(captioner: nn.Module) -> Optional[nn.Module]:
    """Return the module that has an adapter, which may be the captioner; None if there is none."""
    return next((m for m in captioner.modules() if hasattr(m, "peft_config")), None)


def adapter_config(captioner: nn.Module) -> dict[str, Any]:
    """Return {ADAPTER: peft's configuration, as JSON values}; {} if there is no adapter."""
    module = adapted_module(captioner)
    if module is None:
        return {}
    return {ADAPTER: json.loads(json.dumps(module.peft_config[NAME].to_dict(), default=list))}


def trained_state(captioner: nn.Module, **options: Any) -> dict[str, Tensor]:
    """Return the captioner's state dict; with LoRA only the adapter's, under peft's names.

    options: those of `nn.Module.state_dict`.
    """
    module = adapted_module(captioner)
    if module is None:
        return captioner.state_dict(**options)
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(
        module, module.state_dict(**options), save_embedding_layers=False
    )
    return {PREFIX + name: tensor for name, tensor in state.items()}


def load_trained_state(captioner: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Load a result of `trained_state`. name: the file, for messages.

    Raises the errors of `load_state_dict` and, with LoRA, CheckpointError.
    """
    module = adapted_module(captioner)
    if module is None:
        captioner.load_state_dict(state)
    else:
        load_adapter(module, {n.removeprefix(PREFIX): t for n, t in state.items()}, name)
