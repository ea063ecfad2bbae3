"""Reads checkpoints of BLIP and of this project, and loads their weights into a model.

No code in a checkpoint is run. Keys of the file and of the model must be equal, apart from
OPTIONAL_KEYS and FURTHER_TOWERS.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from BLIP.download import fetch
from BLIP.safe_load import HoldsObjectsError, PickledError, first_line, read_pickled

StateDict = dict[str, Tensor]
# A peft folder that `captioning.export` writes has the run's configuration in this file.
RUN_CONFIG = "run_config.json"
ADAPTER = "adapter_config"  # the key of peft's configuration in a checkpoint with an adapter
POSITION_EMBEDDING = "visual_encoder.pos_embed"
PATCH_WEIGHT = "visual_encoder.patch_embed.proj.weight"

# The first parts of keys that are ignored if the model lacks them. The files that BLIP released
# also have text encoders, heads, momentum copies and queues. Former versions of this project saved
# a null image for guidance.
FURTHER_TOWERS = {
    "text_encoder",
    "text_decoder",
    "vision_proj",
    "text_proj",
    "itm_head",
    "temp",
    "visual_encoder_m",
    "text_encoder_m",
    "text_decoder_m",
    "vision_proj_m",
    "text_proj_m",
    "image_queue",
    "text_queue",
    "queue_ptr",
    "ptr_queue",
    "idx_queue",
    "null_image",
}

# Keys that a file may lack. Each maps to the key whose value is used instead; None keeps the
# model's value, which is a constant.
WORD_EMBEDDING = "text_decoder.bert.embeddings.word_embeddings.weight"
OPTIONAL_KEYS = {
    "text_decoder.cls.predictions.decoder.weight": WORD_EMBEDDING,
    "text_decoder.cls.predictions.decoder.bias": "text_decoder.cls.predictions.bias",
    "text_decoder.bert.embeddings.position_ids": None,
}

# Further arguments of `BlipCaptioner` that `settings_in` takes from a checkpoint's configuration.
OTHER_SETTINGS = ("prompt", "first_token_shift")


IS_FOLDER = (
    "is a folder, not a checkpoint: give a file in it (shards of an earlier version become a file "
    "by captioning.gather of commit f445f286)"
)


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, not trusted or of another model.

    The message is one line.
    """


class LoadReport(NamedTuple):
    """The keys whose values `load_weights` did not copy unchanged.

    missing: keys of the model that the file lacks; each got the value of another key or kept the
    model's value. unexpected: keys of the file that were ignored. reshaped: keys whose value was
    resized.
    """

    missing: list[str]
    unexpected: list[str]
    reshaped: list[str]

    def __str__(self) -> str:
        groups = []
        for name, keys in self._asdict().items():
            if keys:
                groups.append(f"{name}: {len(keys)} ({_shorten(keys)})")
        return "; ".join(groups) if groups else "every key matched"


def read_checkpoint(source: str, trust_checkpoint: bool = False, mapped: bool = False) -> dict:
    """Read a checkpoint from a path, URL or hf:// name. Return a dict.

    The dict has the state dict under "model". A checkpoint of a run also has "config", and ADAPTER
    if its weights are an adapter. The file is a .pth or a .safetensors file. A bare state dict
    becomes {"model": state_dict}.

    No code in a file is run. A file with objects other than tensors, numbers and text is refused.
    With `trust_checkpoint`, a .pth file is read without these objects. mapped: memory-map the
    tensors of a .pth file, for a caller that reads few of them. Raises CheckpointError and
    DownloadError.
    """
    path = fetch(source)
    if (path / "adapter_config.json").exists():
        return _read_adapter(path)
    if not path.is_file():
        problem = IS_FOLDER if path.is_dir() else "does not exist"
        raise CheckpointError(f"checkpoint {source} {problem}")
    try:
        if path.suffix == ".safetensors":
            content = load_file(path)
        else:
            content = read_pickled(path, trust_checkpoint, mapped)
    except HoldsObjectsError as error:
        raise CheckpointError(
            f"checkpoint {path} {error}; if you know where the file comes from, set "
            "trust_checkpoint: true to load it without these objects"
        ) from error
    except PickledError as error:
        raise CheckpointError(f"checkpoint {path} {error}") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {first_line(error)}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        content = {"model": content}
    state = content["model"]
    if not isinstance(state, dict) or not state or not holds_tensors(state):
        raise CheckpointError(f"checkpoint {path} is not a state dict and has none as 'model'")
    return content


def _read_adapter(folder: Path) -> dict[str, Any]:
    """Read a folder that peft or `captioning.export` wrote. Raises CheckpointError."""
    try:
        content = {"model": load_file(folder / "adapter_model.safetensors")}
        for key, name in ((ADAPTER, "adapter_config.json"), ("config", RUN_CONFIG)):
            if (folder / name).exists():
                content[key] = json.loads((folder / name).read_text(encoding="utf-8"))
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{folder} cannot be read: {first_line(error)}") from error
    return content


def run_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the run that wrote a checkpoint; {} if the file has none."""
    config = content.get("config")
    return config if isinstance(config, dict) else {}


def settings_in(content: Mapping[str, Any], state: StateDict, name: str, **overrides: Any) -> dict:
    """Return the arguments `tokenizer`, `vit`, `image_size` and `med_config` of `BlipCaptioner`.

    The values come from the configuration in the checkpoint. A configuration may also give `prompt`
    and `first_token_shift`. Values that it does not give are those of BLIP: bert-base-uncased and
    its sizes, ViT-B or ViT-L by the width of the weights, and the image size that fits the position
    embedding. content: the result of `read_checkpoint`. state: the weights of the checkpoint or, if
    it has an adapter, of its base. name: the file, for the message. overrides: arguments that
    replace the others; None is ignored. Raises CheckpointError.
    """
    config = run_config(content)
    if not {PATCH_WEIGHT, POSITION_EMBEDDING} <= set(state):
        raise CheckpointError(f"{name} has no image encoder of BLIP")
    width = len(state[PATCH_WEIGHT])
    patches = state[POSITION_EMBEDDING].size(1) - 1
    settings = {
        "tokenizer": "bert-base-uncased",
        "vit": "large" if width == 1024 else "base",
        "image_size": state[PATCH_WEIGHT].size(2) * round(patches**0.5),
        "med_config": {},
    }
    for key in (*settings, *OTHER_SETTINGS):
        if config.get(key) is not None:
            settings[key] = config[key]
    settings.update({key: value for key, value in overrides.items() if value is not None})
    return settings


def load_weights(model: nn.Module, state: StateDict, name: str) -> LoadReport:
    """Copy a state dict into a model.

    Values in RESIZED, such as the position embedding, are resized to the model's image size.
    OPTIONAL_KEYS may be missing and FURTHER_TOWERS are ignored, because the files that BLIP
    released need it. name: the file, for messages. Raises CheckpointError, and leaves the model
    unchanged, if a value is not finite, a shape differs, or a key is missing or unexpected.
    """
    model_state = model.state_dict()
    state = dict(state)
    missing = _add_missing(state, model_state)
    ignored = FURTHER_TOWERS - {_tower(key) for key in model_state}
    unexpected = [key for key in state if key not in model_state and _tower(key) in ignored]
    for key in unexpected:
        del state[key]
    reshaped = []
    for key, resize in RESIZED.items():
        if key in model_state and key in state and state[key].shape != model_state[key].shape:
            reshaped.append(key)
            try:
                state[key] = resize(state[key].float(), model_state[key].shape)
            except (ValueError, IndexError, RuntimeError) as error:
                raise CheckpointError(f"{name}: {key} cannot be resized: {error}") from error
    check_fits(model_state, state, name)
    check_finite(state, name)
    model.load_state_dict(state)
    return LoadReport(missing, unexpected, reshaped)


def _add_missing(state: StateDict, model_state: StateDict) -> list[str]:
    """Add keys of the model that a file may lack to `state`, and return these keys."""
    missing = []
    for key, source in OPTIONAL_KEYS.items():
        if key in model_state and key not in state and (source is None or source in state):
            missing.append(key)
            state[key] = model_state[key] if source is None else state[source]
    return missing


def _tower(key: str) -> str:
    """Return the first part of a key, such as "visual_encoder"."""
    return key.partition(".")[0]


def check_fits(target: StateDict, state: StateDict, name: str) -> None:
    """Raise CheckpointError if two state dicts differ in their keys or shapes.

    target: the model's state dict. state: the state dict of a file. name: the file, for the
    message.
    """
    missing = sorted(target.keys() - state.keys())
    unexpected = sorted(state.keys() - target.keys())
    if missing or unexpected:
        raise CheckpointError(
            f"{name} does not fit this model: {len(missing)} keys missing ({_shorten(missing)}), "
            f"{len(unexpected)} unexpected ({_shorten(unexpected)}); check model and "
            "the keys of its sizes, such as vit and med_config"
        )
    for key, value in state.items():
        if value.shape != target[key].shape:
            raise CheckpointError(
                f"{name} does not fit this model: {key} is {tuple(value.shape)} in the file and "
                f"{tuple(target[key].shape)} in the model; check model and the keys "
                "of its sizes, such as vit, med_config and tokenizer"
            )


def resize_position_embedding(pos_embed: Tensor, tokens: int) -> Tensor:
    """Resize a position embedding (1, 1 + p*p, D) bicubically to (1, 1 + q*q, D).

    tokens: 1 + q*q, the new number of tokens. The embedding of the class token is unchanged. Raises
    ValueError if the old grid is not a square.
    """
    from timm.layers import resample_abs_pos_embed

    patches = pos_embed.size(1) - 1
    if math.isqrt(patches) ** 2 != patches:
        raise ValueError(f"it is for {patches} patches, which form no square")
    return resample_abs_pos_embed(pos_embed, [math.isqrt(tokens - 1)] * 2, antialias=False)


# Keys whose value is resized if its shape differs from the model's. Each maps to a function that
# takes the value and the model's shape and returns the resized value.
RESIZED = {
    POSITION_EMBEDDING: lambda value, shape: resize_position_embedding(value, shape[1]),
}


def check_finite(state: StateDict, name: str) -> None:
    """Raise CheckpointError if a value is NaN or infinite. name: the file, for the message."""
    for key, value in state.items():
        # If the sum is finite, all values are finite. The sum is much faster to compute.
        if value.is_floating_point() and not (value.sum().isfinite() or value.isfinite().all()):
            raise CheckpointError(
                f"{name} has values that are not finite, in {key}: its run diverged; use an "
                "earlier checkpoint"
            )


def holds_tensors(state: dict) -> bool:
    """Return whether a dict has only strings as keys and only dense tensors with data as values."""
    return all(
        isinstance(key, str)
        and isinstance(value, Tensor)
        and value.layout is torch.strided
        and not value.is_meta
        for key, value in state.items()
    )


def _shorten(keys: list[str]) -> str:
    """Return the first keys as one line."""
    if not keys:
        return "none"
    return ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
