"""LoRA for BLIP: an adapter beside weights that stay where they are, in a checkpoint of their own.

A checkpoint of a run with `lora` holds the adapter, and names the file of the other weights.
"""

from collections.abc import Mapping
from typing import Any, Optional

from torch import Tensor

from adapters.lora import CONFIG, Lora, adapted
from BLIP.blip import BlipCaptioner
from BLIP.weights.checkpoint import CheckpointError, read_checkpoint

# They are one weight, which the objective reads without calling either layer.
TIED = ("text_decoder.cls.predictions.decoder", "text_decoder.bert.embeddings.word_embeddings")


def base_of(content: Mapping[str, Any], name: str) -> Optional[str]:
    """The file whose weights an adapter is beside, None for a checkpoint of whole weights.

    name: the checkpoint's, for the message. Raises CheckpointError.
    """
    if CONFIG not in content:
        return None
    base = content[CONFIG].get("base_model_name_or_path")
    if not base:
        raise CheckpointError(f"{name} holds an adapter, but does not say of which weights")
    return base


def weights_that_stay(
    content: Mapping[str, Any], name: str, trust_checkpoint: bool
) -> tuple[dict[str, Tensor], str]:
    """The state dict that an adapter is, or will be, beside, and the file that has it.

    That is the checkpoint itself where it holds no adapter. Raises CheckpointError.
    """
    base = base_of(content, name)
    if base is None:
        return content["model"], name
    try:
        return read_checkpoint(base, trust_checkpoint)["model"], base
    except ValueError as error:
        raise CheckpointError(f"{name} holds an adapter of {base}, but {error}") from error


def put_adapter(captioner: BlipCaptioner, lora: Lora, base: str) -> None:
    """Freeze the captioner, which has the weights of `base`, with a new adapter. ValueError."""
    adapted(captioner, lora, base, TIED)
