"""Released and own checkpoints: read without running what is in them, load without losing a key."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from BLIP.vit import resize_position_embedding
from BLIP.weights.download import fetch
from BLIP.weights.safe_load import HoldsObjectsError, PickledError, first_line, read_pickled
from BLIP.weights.sharded_checkpoint import is_sharded, read_rest, read_weights

POSITION_EMBEDDING = "visual_encoder.pos_embed"

# What BLIP's pre-training files hold besides a captioner: further towers, their momentum copies,
# projections, queues.
FURTHER_TOWERS = (
    *("text_encoder.", "text_encoder_m.", "visual_encoder_m.", "text_decoder_m."),
    *("vision_proj.", "vision_proj_m.", "text_proj.", "text_proj_m.", "itm_head."),
    *("image_queue", "text_queue", "queue_ptr", "ptr_queue", "idx_queue", "temp"),
)

# Keys that a file may lack: by name, the key that holds the same (None: nothing learnt).
DERIVED = {
    "text_decoder.cls.predictions.decoder.weight": (
        "text_decoder.bert.embeddings.word_embeddings.weight"
    ),
    "text_decoder.cls.predictions.decoder.bias": "text_decoder.cls.predictions.bias",
    "text_decoder.bert.embeddings.position_ids": None,
}


class CheckpointError(ValueError):
    """A file that is not there, not whole, not trusted or not of this model, in one line."""


class LoadReport(NamedTuple):
    """What loading did besides copying: keys of the model filled from another one or left as they
    are, keys of the file passed over, and keys whose value was resized."""

    missing: list[str]
    unexpected: list[str]
    reshaped: list[str]

    def __str__(self) -> str:
        listed = self._asdict().items()
        named = [f"{word}: {len(keys)} ({_some(keys)})" for word, keys in listed if keys]
        return "; ".join(named) or "every key matched"


def read_checkpoint(source: str, trust_checkpoint: bool = False, mapped: bool = False) -> dict:
    """The content of a .pth or .safetensors file at a path, URL or hf:// name, with "model" in it.

    So is that of a folder of parts, without its optimiser's. A bare state dict is returned as
    {"model": state_dict}. Nothing in a file is executed. One that holds objects besides tensors is
    refused or, with `trust_checkpoint`, read without them. mapped: for a
    look at all else than the tensors. Raises CheckpointError and DownloadError.
    """
    path = fetch(source)
    in_parts = is_sharded(path)
    if not (path.is_file() or in_parts):
        lacks = (
            "is a folder and no checkpoint: name a file in it"
            if path.is_dir()
            else "does not exist"
        )
        raise CheckpointError(f"checkpoint {source} {lacks}")
    try:
        if path.suffix == ".safetensors":
            content = load_file(path)
        elif in_parts:
            content = {**read_rest(path), "model": read_weights(path)}
        else:
            content = read_pickled(path, trust_checkpoint, mapped)
    except HoldsObjectsError as error:
        raise CheckpointError(
            f"checkpoint {path} {error}; set trust_checkpoint: true to leave them out and load the "
            "rest, if you know where it comes from"
        ) from error
    except PickledError as error:
        raise CheckpointError(f"checkpoint {path} {error}") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {first_line(error)}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        content = {"model": content}
    state = content["model"]
    if not isinstance(state, dict) or not state or not holds_tensors(state):
        raise CheckpointError(f"checkpoint {path} holds no state dict, neither bare nor as 'model'")
    return content


def load_weights(model: nn.Module, state: dict[str, Tensor], name: str) -> LoadReport:
    """Copy a state dict into a captioner, the position embedding resized to its image size.

    name: the file, for messages. Raises CheckpointError, having changed nothing, where a value is
    not finite, and where a key is missing, unexpected or of another shape, unless BLIP's own files
    are known for it (further towers, tied head, position ids).
    """
    own, state = model.state_dict(), dict(state)
    missing, unexpected, reshaped = [], [], []
    for key, source in DERIVED.items():
        if key in own and key not in state and (source is None or source in state):
            missing.append(key)
            state[key] = own[key] if source is None else state[source]
    for key in [key for key in state if key not in own and key.startswith(FURTHER_TOWERS)]:
        unexpected.append(key)
        del state[key]
    lacking, foreign = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if lacking or foreign:
        raise CheckpointError(
            f"{name} is not of this model: {len(lacking)} keys missing ({_some(lacking)}), "
            f"{len(foreign)} unexpected ({_some(foreign)}); check model, vit and med_config"
        )
    place = POSITION_EMBEDDING  # a classic captioner has none
    if place in own and state[place].shape[1:2] != own[place].shape[1:2]:
        reshaped.append(place)
        try:
            state[place] = resize_position_embedding(state[place].float(), own[place].size(1))
        except (ValueError, IndexError) as error:
            raise CheckpointError(f"{name}: {place} cannot be resized: {error}") from error
    _check_shapes(own, state, name)
    check_finite(state, name)
    model.load_state_dict(state)
    return LoadReport(missing, unexpected, reshaped)


def _check_shapes(own: dict[str, Tensor], state: dict[str, Tensor], name: str) -> None:
    for key, value in state.items():
        if value.shape != own[key].shape:
            raise CheckpointError(
                f"{name} is not of this model: {key} is {tuple(value.shape)} in the file and "
                f"{tuple(own[key].shape)} in the model; check model, vit, med_config and tokenizer"
            )


def check_finite(state: Mapping[str, Tensor], name: str) -> None:
    """Raise CheckpointError where a value is NaN or infinite; name: the file, for the message."""
    for key, value in state.items():
        # The sum is finite only where all values are, and is found much sooner.
        if value.is_floating_point() and not (value.sum().isfinite() or value.isfinite().all()):
            raise CheckpointError(
                f"{name} is of a run that broke: {key} holds values that are not finite; take an "
                "earlier checkpoint"
            )


def holds_tensors(state: dict) -> bool:
    """Whether these are values by name, and no mere descriptions of some."""
    return all(
        isinstance(k, str) and isinstance(v, Tensor) and v.layout is torch.strided and not v.is_meta
        for k, v in state.items()
    )


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "") if keys else "none"
