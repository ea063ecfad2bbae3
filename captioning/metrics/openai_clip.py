"""Reads CLIP weights in OpenAI's layout, such as those of PAC-S and Long-CLIP.

Such a file has no configuration, so that the sizes are derived from the tensors. Attention heads
have width 64, as in all of OpenAI's CLIPs with a vision transformer.
"""

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from BLIP.checkpoint import read_checkpoint
from captioning.runtime.errors import UserError, one_line

HEAD_WIDTH = 64
KEPT = 20  # positions of CLIP that Long-CLIP does not stretch

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


def read_openai_clip(path: Path) -> nn.Module:
    """Return transformers' CLIPModel with the weights of a file.

    For the forms of a file, see `read_checkpoint`. The activation is OpenAI's quick
    GELU, or the exact GELU if the file's name contains "openclip" or "open_clip". Raises UserError.
    """
    activation = "gelu" if "openclip" in path.name.lower().replace("_", "") else "quick_gelu"
    try:
        state = read_checkpoint(str(path))["model"]
        model = _build(state, activation)
        loading = model.load_state_dict(_renamed(state), strict=False)
        missing = [name for name in loading.missing_keys if "position_ids" not in name]
        if missing:
            raise ValueError(f"it lacks {missing[0]}")
        return model.float().eval().requires_grad_(False)
    except Exception as error:
        raise UserError(
            f"clip_model: {path} is no CLIP with a vision transformer in OpenAI's layout "
            f"({one_line(error)}): give such a file, or a folder in transformers' format"
        ) from None


def _build(state: dict[str, Tensor], activation: str) -> nn.Module:
    """Return a CLIPModel of the weights' sizes, without these weights."""
    from transformers import CLIPConfig, CLIPModel

    width, _, _, patch = state["visual.conv1.weight"].shape
    patches = len(state["visual.positional_embedding"]) - 1
    context, text_width = state["positional_embedding"].shape

    def tower(prefix: str, width: int) -> dict:
        return {
            "hidden_size": width,
            "intermediate_size": len(state[f"{prefix}0.mlp.c_fc.weight"]),
            "num_hidden_layers": sum(
                f"{prefix}{n}.ln_1.weight" in state for n in range(len(state))
            ),
            "num_attention_heads": width // HEAD_WIDTH,
            "hidden_act": activation,
        }

    words = len(state["token_embedding.weight"])
    text = {"vocab_size": words, "max_position_embeddings": context}
    text.update(bos_token_id=words - 2, eos_token_id=words - 1)
    vision = {"image_size": patch * math.isqrt(patches), "patch_size": patch}
    # transformers 4.15.0 supports only these argument names.
    config = CLIPConfig(
        text_config_dict={**tower("transformer.resblocks.", text_width), **text},
        vision_config_dict={**tower("visual.transformer.resblocks.", width), **vision},
        projection_dim=state["text_projection"].shape[1],
    )
    return CLIPModel(config)


def _renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with transformers' names."""
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
    position = "text_model.embeddings.position_embedding.weight"
    stretched = renamed.pop(f"{position}_res", None)
    if stretched is not None:  # Long-CLIP uses these for the later positions
        renamed[position] = torch.cat([renamed[position][:KEPT], stretched[KEPT:]])
    return renamed
