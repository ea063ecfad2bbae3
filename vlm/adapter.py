"""LoRA through peft: what is trained of a model, and saved of it, in peft's own format."""

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def adapted(model: nn.Module, lora: Mapping[str, Any]) -> nn.Module:
    """The model, frozen, with layers of low rank beside those that `lora` names.

    lora: r, alpha, dropout and target_modules (arXiv 2106.09685). Raises ValueError.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError("lora needs peft: pip install peft") from error
    config = LoraConfig(
        r=lora["r"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        target_modules=lora["target_modules"],
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"lora: target_modules {lora['target_modules']!r}: {reason}") from error


def is_adapted(model: nn.Module) -> bool:
    return hasattr(model, "peft_config")


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """What peft saves of the model, by peft's names."""
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(model, save_embedding_layers=False)


def load_adapter_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Raises RuntimeError, as torch does, where the names are not those of this adapter."""
    from peft import set_peft_model_state_dict

    own = adapter_state(model)
    other = sorted(own.keys() ^ state.keys())
    if other:
        raise RuntimeError(f"an adapter of another model: {len(other)} keys, such as {other[0]}")
    set_peft_model_state_dict(model, dict(state))


def adapter_config(model: nn.Module) -> dict[str, Any]:
    """That of peft, as JSON has it."""
    return json.loads(json.dumps(model.peft_config["default"].to_dict(), default=list))
