"""Reads checkpoints, and loads their weights into a model.

No code in a checkpoint is run.
"""

import json
import math
import os
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from BLIP.download import fetch, first_line, without_secrets
from BLIP.sizes import MedConfig

StateDict = dict[str, Tensor]
POSITION_EMBEDDING = "visual_encoder.pos_embed"
PATCH_WEIGHT = "visual_encoder.patch_embed.proj.weight"
WORD_EMBEDDING = "text_decoder.bert.embeddings.word_embeddings.weight"
# Keys that a file may lack: the first two are other names of a weight, the others are constants.
OPTIONAL_KEYS = {
    "text_decoder.cls.predictions.decoder.weight",
    "text_decoder.cls.predictions.decoder.bias",
    "text_decoder.bert.embeddings.position_ids",
    "text_encoder.embeddings.position_ids",
}
ADAPTER = "adapter_config"  # the key of peft's configuration in a checkpoint with an adapter
RUN = "run.json"  # the other entries of a checkpoint, in a peft folder that we wrote
# The entry of a checkpoint with the content of the files that its configuration names: under
# "tokenizer" `CaptionTokenizer.files`, under "med_config" a dict.
FILES = "files"

# What files of other programs call the state dict, and what wrappers of modules put before keys.
STATE_NAMES = ("model", "state_dict", "model_state_dict")
PREFIXES = re.compile(r"^(module\.|_orig_mod\.)+|(?<=\.)_orig_mod\.")
# The files of a folder of peft or transformers.
WEIGHTS = (
    *("adapter_model.safetensors", "adapter_model.bin"),
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
# Maps parts of transformers' parameter names in the image encoder to the parts that replace them
# here. The parameters of the text encoder and decoder have the same names in transformers.
HF_NAMES = {
    "vision_model.embeddings.class_embedding": "visual_encoder.cls_token",
    "vision_model.embeddings.position_embedding": POSITION_EMBEDDING,
    "vision_model.embeddings.patch_embedding.": "visual_encoder.patch_embed.proj.",
    "vision_model.post_layernorm.": "visual_encoder.norm.",
    "vision_model.encoder.layers.": "visual_encoder.blocks.",
    ".self_attn.qkv.": ".attn.qkv.",
    ".self_attn.projection.": ".attn.proj.",
    ".layer_norm1.": ".norm1.",
    ".layer_norm2.": ".norm2.",
}
# Maps attributes of `VitSizes` to keys of vision_config in transformers' config.json.
HF_VIT = {
    "embed_dim": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "patch_size": "patch_size",
    "layer_norm_eps": "layer_norm_eps",
}


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, not trusted or of another model.

    The message is one line.
    """


class OmittedObject:
    """A placeholder for an object that is left out.

    The file may make the unpickler call methods of the object. These methods do nothing.
    """

    def __init__(self, *_, **__):
        pass

    __setstate__ = __setitem__ = __init__


def read_pickled(path: Path, leave_out_objects: bool = False, mapped: bool = True) -> Any:
    """Return the tensors, numbers, text, lists and dicts of a file of torch.save, on the CPU.

    torch's restricted unpickler reads the file. An object of another type raises CheckpointError
    or, with `leave_out_objects`, becomes an OmittedObject, except in files of torch before 1.6.
    mapped: memory-map the tensors, so that only those that are used are read; they keep a removed
    file on the disk. Raises CheckpointError for a file that is damaged, and FileNotFoundError.
    """
    try:
        is_archive = zipfile.is_zipfile(path)  # false for files of torch before 1.6
        types = sorted(get_unsafe_globals_in_checkpoint(str(path))) if is_archive else []
        if types and not leave_out_objects:
            raise CheckpointError(
                f"{path} has objects that could run code ({', '.join(types)}); if you know where "
                "the file comes from, set trust_checkpoint: true to load it without them"
            )
        omitted = [(OmittedObject, name) for name in types]
        with safe_globals(omitted), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about pickles of other programs
            return torch.load(path, "cpu", weights_only=True, mmap=mapped and is_archive)
    except (CheckpointError, FileNotFoundError):
        raise
    except Exception as error:  # the unpickler can raise any exception for a damaged file
        reason = first_line(error).partition(". ")[0]
        if "weights_only" in str(error):  # torch's message explains how to run code in the file
            reason = "it has more than tensors, numbers and text, or is not a checkpoint"
        raise CheckpointError(
            f"{path} is damaged ({reason}): write or download it again"
        ) from error


def read_checkpoint(source: str, trust_checkpoint: bool = False) -> dict[str, Any]:
    """Read a checkpoint from a path, address or hub name; `fetch` lists the forms.

    The result has the state dict under "model". A checkpoint of a run also has "config", and
    ADAPTER if its weights are an adapter. The file is of torch.save or safetensors, or an index of
    such files. A folder is of peft, or of a BLIP of transformers, whose "config" has the sizes.

    No code in a file is run. A file with objects other than tensors, numbers and text is refused
    or, with `trust_checkpoint`, read without them. Raises CheckpointError and DownloadError.
    """
    path = fetch(source)
    if path.is_dir():
        path = next(filter(Path.exists, (path / name for name in WEIGHTS)), path)
    if not path.is_file():
        problem = f"is a folder without {WEIGHTS[2]}" if path.is_dir() else "does not exist"
        raise CheckpointError(f"{without_secrets(source)} {problem}")
    try:
        content = _read_file(path, trust_checkpoint)
        if holds_tensors(content):
            content = {"model": content}
        names = STATE_NAMES if isinstance(content, dict) else ()
        state = next((content.pop(name) for name in names if name in content), None)
        if not holds_tensors(state):
            raise CheckpointError(f"{path} is not a state dict and has none as 'model'")
        # Another program may have trained the captioner as a part of a larger module, beside an
        # average of its weights: the shortest name is taken.
        outers = (key.removesuffix(PATCH_WEIGHT) for key in state if key.endswith(PATCH_WEIGHT))
        outer = min(outers, key=len, default="")
        state = {PREFIXES.sub("", key.removeprefix(outer)): v for key, v in state.items()}
        if path.stem == "adapter_model":
            content[ADAPTER] = _read_json(path.with_name("adapter_config.json"))
            run = path.with_name(RUN)
            content.update(_read_json(run) if run.exists() else {})
        elif next(iter(HF_NAMES)) in state:
            config = settings_of(_read_json(path.with_name("config.json")))
            content["config"] = {**config, "tokenizer": str(path.parent)}
            state = {rename(key, HF_NAMES): value for key, value in state.items()}
        return {**content, "model": state}
    except CheckpointError:
        raise
    except Exception as error:  # safetensors also raises other errors than OSError
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}") from error


def _read_file(path: Path, trust_checkpoint: bool) -> Any:
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.suffix != ".json":
        return read_pickled(path, trust_checkpoint)
    state = {}
    for shard in {*_read_json(path)["weight_map"].values()}:
        state.update(_read_file(path.with_name(shard), trust_checkpoint))
    return state


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `settings_in` of transformers' config.json. Raises ValueError for another model.

    The prompt is the one that BLIP.convert wrote. Other files have none, so that captions are
    those of transformers without a text.
    """
    if config.get("model_type") != "blip":
        raise ValueError(f"the model_type in config.json is {config.get('model_type')}, not blip")
    # transformers' values for missing keys are not always BLIP's.
    sizes = MedConfig().model_dump()
    text = {**sizes, "num_attention_heads": 8, **config["text_config"]}
    defaults = {**sizes, "image_size": 384, "patch_size": 16, "layer_norm_eps": 1e-5}
    vision = {**defaults, **config["vision_config"]}
    vit = {ours: vision[theirs] for ours, theirs in HF_VIT.items()}
    vit["mlp_ratio"] = vision["intermediate_size"] / vision["hidden_size"]
    return {
        "vit": vit,
        "image_size": vision["image_size"],
        "med_config": {key: text[key] for key in sizes},
        "prompt": config.get("prompt", ""),
    }


def rename(key: str, names: Mapping[str, str]) -> str:
    """Return a key with its parts replaced. names: {part: the part that replaces it}."""
    for old, new in names.items():
        key = key.replace(old, new)
    return key


def run_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the run that wrote a checkpoint; {} if the file has none."""
    config = content.get("config")
    return config if isinstance(config, dict) else {}


def settings_in(content: Mapping[str, Any], state: StateDict, name: str, **overrides: Any) -> dict:
    """Return arguments of `BlipCaptioner` for a checkpoint.

    They are `tokenizer`, `vit`, `image_size` and `med_config`, and `prompt` and `first_token_shift`
    if the checkpoint's configuration has them. Values that it does not give are those of BLIP:
    bert-base-uncased and its sizes, ViT-B or ViT-L by the width of the weights, and the image size
    that fits the position embedding. Raises CheckpointError.

    - content: the result of `read_checkpoint`
    - state: the weights of the checkpoint or, if it has an adapter, of its base
    - name: the file, for the message
    - overrides: arguments that replace the others; None is ignored
    """
    if not {PATCH_WEIGHT, POSITION_EMBEDDING} <= state.keys():
        raise CheckpointError(f"{name} has no image encoder of BLIP")
    width, _, patch_size, _ = state[PATCH_WEIGHT].shape
    settings = {
        "tokenizer": "bert-base-uncased",
        "vit": "large" if width == 1024 else "base",
        "image_size": patch_size * math.isqrt(state[POSITION_EMBEDDING].size(1) - 1),
        "med_config": {},
    }
    keys, config = (*settings, "prompt", "first_token_shift"), run_config(content)
    settings.update({key: config[key] for key in keys if key in config})
    for key in ("tokenizer", "med_config"):
        settings[key] = file_content(content, key, settings[key])
    settings.update({key: value for key, value in overrides.items() if value is not None})
    return settings


def file_content(content: Mapping[str, Any], key: str, value: Any) -> Any:
    """Return what a checkpoint has in place of a file that a configuration names, else `value`.

    key, value: of the configuration. `value` is returned if it is not the checkpoint's.
    """
    files = content.get(FILES, {})
    is_same = key in files and run_config(content).get(key, value) == value
    return files[key] if is_same else value


def path_beside(name: str, checkpoint: str) -> str:
    """Return a path that a checkpoint names, from the working folder or one above the checkpoint.

    The first that exists is returned; `name` itself, which may be of the hub, if there is none.
    """
    folders = ("", *Path(checkpoint).absolute().parents)
    return next(filter(os.path.exists, (os.path.join(each, name) for each in folders)), name)


def load_weights(model: nn.Module, state: StateDict, name: str) -> str:
    """Copy a state dict into a model; return a line that says what was not copied unchanged.

    The position embedding is resized to the model's image size. OPTIONAL_KEYS may be missing, and
    parts that the model lacks are ignored: the files that BLIP released also have text encoders,
    heads, momentum copies and queues. name: the file, for messages. Raises CheckpointError if a
    value is not finite, a shape differs, or a key is missing or unexpected.
    """
    own = model.state_dict()
    parts = {key.partition(".")[0] for key in own}
    ignored = [key for key in state if key.partition(".")[0] not in parts]
    notes = [f"ignored {len(ignored)} keys ({ignored[0]}, ...)"] if ignored else []
    state = {key: value for key, value in state.items() if key not in ignored}
    check_finite(state, name)
    try:
        differing = own.keys() - OPTIONAL_KEYS ^ state.keys() - OPTIONAL_KEYS
        if differing:
            raise ValueError(f"{len(differing)} keys differ, such as {min(differing)}")
        key = POSITION_EMBEDDING
        if key in own and own[key].shape != state[key].shape:
            notes.append(f"resized {key}")
            state[key] = resize_position_embedding(state[key].float(), own[key].size(1))
        model.load_state_dict(state, strict=False)
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{name} does not fit this model ({' '.join(str(error).split())[:300]}): check model "
            "and the keys of its sizes, such as vit, med_config and tokenizer"
        ) from error
    return "; ".join(notes) or "every key matched"


def resize_position_embedding(pos_embed: Tensor, tokens: int) -> Tensor:
    """Resize a position embedding (1, 1 + p*p, D) bicubically to (1, 1 + q*q, D).

    tokens: 1 + q*q, the new number of tokens. The embedding of the class token is unchanged. Raises
    RuntimeError if the old grid is not a square.
    """
    from timm.layers import resample_abs_pos_embed

    return resample_abs_pos_embed(pos_embed, [math.isqrt(tokens - 1)] * 2, antialias=False)


def check_finite(state: StateDict, name: str) -> None:
    """Raise CheckpointError if a value is NaN or infinite. name: the file, for the message."""
    for key, value in state.items():
        # If the sum is finite, all values are finite. The sum is much faster to compute.
        if value.is_floating_point() and not (value.sum().isfinite() or value.isfinite().all()):
            raise CheckpointError(
                f"{name} has values that are not finite, in {key}: its run diverged; use an "
                "earlier checkpoint"
            )


def holds_tensors(state: Any) -> bool:
    """Return whether a state dict has only names as keys and only dense tensors as values."""
    return isinstance(state, dict) and all(
        isinstance(key, str) and isinstance(value, Tensor) and not value.is_meta
        for key, value in state.items()
    )
