"""Adds LoRA's low-rank layers to a model through peft, and reads and writes them in peft's format.

An adapted model is a `PeftModel`, or any `nn.Module` in which peft has replaced layers.
"""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from adapters import CONFIG

PREFIX = "base_model.model."  # peft's files put this before a model's parameter names
NAME = "default"  # peft's name for an adapter that was given no name


class Lora(BaseModel):
    """Settings of LoRA, the value of the configuration key `lora`.

    r, alpha, dropout and target_modules are `r`, `lora_alpha`, `lora_dropout` and `target_modules`
    of peft's LoraConfig. load_in_4bit: quantise the frozen weights to 4 bits (QLoRA, arXiv
    2305.14314).
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    r: int = Field(16, gt=0, le=65_536)
    alpha: float = Field(32.0, gt=0)
    dropout: float = Field(0.05, ge=0, lt=1)
    target_modules: Union[str, list[str]] = Field("all-linear", min_length=1)
    load_in_4bit: bool = False


def add_lora(
    model: nn.Module, lora: Lora, base_file: Optional[str] = None, excluded: Sequence[str] = ()
) -> nn.Module:
    """Freeze a model and add low-rank layers in place (arXiv 2106.09685); return its `PeftModel`.

    base_file: the file of the frozen weights, which is recorded in peft's configuration. excluded:
    names of layers that get no adapter. Raises ValueError if peft is not installed, or if
    target_modules match no layer.
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
        adapted_model = get_peft_model(model, config)
    except (ValueError, re.error) as error:  # peft reads a string as a regular expression
        raise ValueError(f"lora: target_modules {lora.target_modules!r}: {error}") from error
    config.base_model_name_or_path = base_file or config.base_model_name_or_path
    return adapted_model


def is_adapted(model: nn.Module) -> bool:
    return hasattr(model, "peft_config")


def load_adapter_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the adapter's weights from `state`, a state dict with peft's names.

    Raises RuntimeError, as torch does, if the names differ from those of the model's adapter.
    """
    model_names = _adapter_entries(model, {name: name for name in nn.Module.state_dict(model)})
    mismatched = sorted(model_names.keys() ^ state.keys())
    if mismatched:
        raise RuntimeError(
            f"the adapter belongs to another model: {len(mismatched)} keys differ, such as "
            f"{mismatched[0]}"
        )
    weights = {model_names[name]: tensor for name, tensor in state.items()}
    nn.Module.load_state_dict(model, weights, strict=False)


def _adapter_entries(model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the adapter's entries of a model's state dict, under peft's names."""
    from peft import get_peft_model_state_dict

    entries = get_peft_model_state_dict(model, state_dict=state, save_embedding_layers=False)
    return {PREFIX + name.removeprefix(PREFIX): value for name, value in entries.items()}


class AdaptedState(nn.Module):
    """A base class of captioners that may have LoRA.

    With LoRA, the state dict has only the adapter's weights, under peft's names.
    """

    @property
    def adapted_module(self) -> nn.Module:
        """The module that `add_lora` changes. A subclass may return one of its submodules."""
        return self

    def saved_beside_weights(self) -> dict[str, Any]:
        """Return {CONFIG: peft's configuration of the adapter, as JSON values}.

        Return {} if there is no adapter. A checkpoint has these entries in addition to the weights.
        """
        if not is_adapted(self.adapted_module):
            return {}
        config = self.adapted_module.peft_config[NAME].to_dict()
        return {CONFIG: json.loads(json.dumps(config, default=list))}

    def state_dict(self, *args, **kwargs) -> dict[str, Tensor]:
        module = self.adapted_module
        if is_adapted(module):
            return _adapter_entries(module, nn.Module.state_dict(module, **kwargs))
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *args, **kwargs):
        if is_adapted(self.adapted_module):
            return load_adapter_state(self.adapted_module, state_dict)
        return super().load_state_dict(state_dict, *args, **kwargs)


def merge_adapter(model: nn.Module) -> None:
    """Replace the adapted layers of a model, in place, by plain layers with the merged weights.

    The frozen weights are copied before they are changed, because another model may share them.
    """
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if hasattr(layer, "get_delta_weight"):
                merged_layer = copy.deepcopy(layer.get_base_layer())
                merged_layer.weight.data += layer.get_delta_weight(NAME)
                setattr(module, name, merged_layer)
    del model.peft_config
