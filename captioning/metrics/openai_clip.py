"""Converts CLIP weights in OpenAI's layout, such as PAC-S's, to the names of transformers.

Such a file has no configuration, so that the sizes are derived from the tensors. Attention heads
have width 64, as in all of OpenAI's CLIPs with a vision transformer.
"""

import math
from pathlib import Path
from typing import Any

from torch import Tensor

from captioning.metrics.model_files import read_weights
from captioning.runtime.errors import UserError

HEAD_WIDTH = 64

# {part of a name in OpenAI's layout: the same part in transformers}. Replaced in this order.
_NAMES = {
    "visual.transformer.resblocks.": "vision_model.encoder.layers.",
    "transformer.resblocks.": "text_model.encoder.layers.",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.": "vision_model.embeddings.patch_embedding.",
    "visual.ln_pre.": "vision_model.pre_layrnorm.",  # sic: transformers' spelling
    "visual.ln_post.": "vision_model.post_layernorm.",
    "token_embedding.": "text_model.embeddings.token_embedding.",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.": "text_model.final_layer_norm.",
    ".ln_1.": ".layer_norm1.",
    ".ln_2.": ".layer_norm2.",
    ".attn.": ".self_attn.",
    ".mlp.c_fc.": ".mlp.fc1.",
    ".mlp.c_proj.": ".mlp.fc2.",
}


def read_openai_clip(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return sizes, as in transformers' config.json, and weights with transformers' names.

    The file is a state dict, or contains one under "state_dict". The activation is OpenAI's quick
    GELU, or the exact GELU if the file's name contains "openclip" or "open_clip". Raises UserError.
    """
    state = read_weights(path, "state_dict")
    try:
        sizes, renamed = _sizes(state), _renamed(state)
    except (KeyError, IndexError, ValueError):
        raise UserError(
            f"{path}: clip_model: not a CLIP with a vision transformer in OpenAI's layout: give "
            "such a file, or a folder in transformers' format"
        ) from None
    activation = "gelu" if "openclip" in path.name.lower().replace("_", "") else "quick_gelu"
    for tower in ("text_config", "vision_config"):
        sizes[tower]["hidden_act"] = activation
    return sizes, renamed


def _sizes(state: dict[str, Tensor]) -> dict[str, Any]:
    """Return the model's sizes, as in config.json.

    Raises KeyError, IndexError or ValueError if the weights are of another model.
    """
    width, _, _, patch = state["visual.conv1.weight"].shape
    patches = state["visual.positional_embedding"].shape[0] - 1
    context, text_width = state["positional_embedding"].shape
    return {
        "projection_dim": state["text_projection"].shape[1],
        "text_config": {
            **_tower(state, "transformer.resblocks.", text_width),
            "vocab_size": state["token_embedding.weight"].shape[0],
            "max_position_embeddings": context,
        },
        "vision_config": {
            **_tower(state, "visual.transformer.resblocks.", width),
            "image_size": patch * math.isqrt(patches),
            "patch_size": patch,
        },
    }


def _tower(state: dict[str, Tensor], prefix: str, width: int) -> dict[str, int]:
    """Return the sizes of the encoder of this width whose names begin with `prefix`."""
    return {
        "hidden_size": width,
        "intermediate_size": state[f"{prefix}0.mlp.c_fc.weight"].shape[0],
        "num_hidden_layers": sum(f"{prefix}{n}.ln_1.weight" in state for n in range(len(state))),
        "num_attention_heads": max(1, width // HEAD_WIDTH),
    }


def _renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with transformers' names. Raises KeyError for other models."""
    renamed = {
        "text_projection.weight": state["text_projection"].T,
        "visual_projection.weight": state["visual.proj"].T,
    }
    for name, value in state.items():
        for theirs, ours in _NAMES.items():
            name = name.replace(theirs, ours)
        block, in_proj, kind = name.partition("in_proj_")
        if in_proj:  # query, key and value in one tensor
            for part, third in zip("qkv", value.chunk(3)):
                renamed[f"{block}{part}_proj.{kind}"] = third
        else:
            renamed[name] = value
    return renamed
