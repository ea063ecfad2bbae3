"""CLIP's weights as OpenAI's code names them, PAC-S's among them, under transformers' names.

Such a file has no sizes beside it; they are those of its tensors. A head is 64 wide in every vision
transformer that OpenAI released.
"""

import math
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from captioning.metrics.model_files import read_weights
from captioning.runtime.errors import UserError

HEAD = 64

# How the names of either tower's blocks begin, in either layout.
_TOWERS = {"": "text_model.", "visual.": "vision_model."}
_BLOCK = re.compile(r"(visual\.|)transformer\.resblocks\.(\d+)\.(.+)")
_IN_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_NAMES = {
    "logit_scale": "logit_scale",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    # transformers' own spelling
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
}
_PROJECTIONS = {
    "text_projection": "text_projection.weight",
    "visual.proj": "visual_projection.weight",
}


def read_openai_clip(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return sizes, as in transformers' config.json, and weights, by transformers' names.

    The file holds a state dict, bare or under "state_dict". OpenAI's weights are those of a fast
    GELU, and OpenCLIP's, told by the file's name, of the plain one. Raises UserError.
    """
    state = read_weights(path, "state_dict")
    try:
        sizes, renamed = _sizes(state), _renamed(state)
    except (KeyError, IndexError, ValueError):
        raise UserError(
            f"{path}: clip_model: no CLIP with a vision transformer in OpenAI's layout: give such "
            "a file, or a folder as transformers saves it"
        ) from None
    activation = "gelu" if "openclip" in path.name.lower().replace("_", "") else "quick_gelu"
    for tower in ("text_config", "vision_config"):
        sizes[tower]["hidden_act"] = activation
    return sizes, renamed


def _sizes(state):
    """Raises KeyError, IndexError or ValueError where the state is of something else."""
    width, _, _, patch = state["visual.conv1.weight"].shape
    places = state["visual.positional_embedding"].shape[0] - 1
    context, text_width = state["positional_embedding"].shape
    vocabulary = state["token_embedding.weight"].shape[0]
    return {
        "projection_dim": state["text_projection"].shape[1],
        "text_config": {
            **_tower(state, "", text_width),
            "vocab_size": vocabulary,
            "max_position_embeddings": context,
        },
        "vision_config": {
            **_tower(state, "visual.", width),
            "image_size": patch * math.isqrt(places),
            "patch_size": patch,
        },
    }


def _tower(state, prefix, width):
    blocks = [found[2] for name in state if (found := _BLOCK.match(name)) and found[1] == prefix]
    return {
        "hidden_size": width,
        "intermediate_size": state[f"{prefix}transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        "num_hidden_layers": len(set(blocks)),
        "num_attention_heads": max(1, width // HEAD),
    }


def _renamed(state):
    """The weights under transformers' names; what neither layout knows is left out."""
    renamed = {_NAMES[name]: value for name, value in state.items() if name in _NAMES}
    for name, other in _PROJECTIONS.items():
        renamed[other] = state[name].T
    for name, value in state.items():
        if not (found := _BLOCK.fullmatch(name)):
            continue
        block = f"{_TOWERS[found[1]]}encoder.layers.{found[2]}."
        inner, _, kind = found[3].rpartition(".")
        if inner in _IN_BLOCK:
            renamed[f"{block}{_IN_BLOCK[inner]}.{kind}"] = value
        elif inner == "attn":  # in_proj_weight and in_proj_bias hold three
            kind = kind.replace("in_proj_", "")
            for part, third in zip("qkv", value.chunk(3)):
                renamed[f"{block}self_attn.{part}_proj.{kind}"] = third
    return renamed
