"""Reads the LoRA adapter of a checkpoint through peft, and its base weights."""

from collections.abc import Mapping
from textwrap import shorten
from typing import Any

from torch import Tensor, nn

from BLIP.checkpoint import ADAPTER, CheckpointError, check_finite, read_checkpoint


def read_base(
    content: Mapping[str, Any], name: str, trust_checkpoint: bool = False
) -> tuple[dict, str]:
    """Return the content and the name of the checkpoint that an adapter adapts.

    content: the result of `read_checkpoint`. name: the checkpoint, for messages. Raises
    CheckpointError.
    """
    base = content[ADAPTER].get("base_model_name_or_path")
    if not base:
        raise CheckpointError(f"{name} has an adapter, but not the path of its base weights")
    try:
        return read_checkpoint(base, trust_checkpoint), base
    except ValueError as error:
        raise CheckpointError(f"{name} has an adapter of {base}, but {error}") from error


def load_adapter(model: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Load the weights of an adapter into a model in which peft has replaced layers.

    state: {peft's name of a weight in this model: weight}. name: the checkpoint, for messages.
    Raises CheckpointError if names or shapes differ.
    """
    from peft import set_peft_model_state_dict

    try:
        names = set_peft_model_state_dict(model, dict(state))
    except RuntimeError as error:
        reason = shorten(str(error), 200)
        raise CheckpointError(f"{name} has an adapter of another model: {reason}") from error
    wrong = [*names.unexpected_keys, *(key for key in names.missing_keys if "lora_" in key)]
    if wrong:
        raise CheckpointError(
            f"{name} has an adapter of another model: {len(wrong)} keys differ, such as {wrong[0]}"
        )


def merge_adapter(model: nn.Module, content: Mapping[str, Any], name: str) -> None:
    """Merge the adapter of a checkpoint into a model's weights, in place.

    content: the result of `read_checkpoint`. name: the checkpoint, for messages. Raises
    CheckpointError.
    """
    try:
        from peft import PeftConfig, get_peft_model
    except ImportError as error:
        raise CheckpointError(f"{name} has an adapter: pip install peft") from error
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # peft would warn of a base with another name, and wrap a model by its task.
    config = {**content[ADAPTER], "base_model_name_or_path": None, "task_type": None}
    try:
        peft_model = get_peft_model(model, PeftConfig.from_peft_type(**config))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{name} has an adapter of another model: {error}") from error
    check_finite(content["model"], name)
    load_adapter(peft_model, content["model"], name)
    peft_model.merge_and_unload()
    for parameter in trainable:  # peft has frozen them
        parameter.requires_grad_()
