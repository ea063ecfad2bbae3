"""What BLIP's captioner is called in transformers: parameter names and configurations, both ways.

transformers is not imported, so that 4.15.0, which has no BLIP, makes the same files.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields

import torch
from torch import Tensor

from BLIP.blip import BlipCaptioner
from BLIP.checkpoint import DERIVED, CheckpointError
from BLIP.med_config import MedConfig
from BLIP.vit import NEEDED_SIZES, VIT_SIZES

# The image encoder's, by their beginning and within a block; the text decoder's are the same.
VISION = {
    "visual_encoder.cls_token": "vision_model.embeddings.class_embedding",
    "visual_encoder.pos_embed": "vision_model.embeddings.position_embedding",
    "visual_encoder.patch_embed.proj.": "vision_model.embeddings.patch_embedding.",
    "visual_encoder.norm.": "vision_model.post_layernorm.",
    "visual_encoder.blocks.": "vision_model.encoder.layers.",
}
BLOCK = {
    ".attn.qkv.": ".self_attn.qkv.",
    ".attn.proj.": ".self_attn.projection.",
    ".norm1.": ".layer_norm1.",
    ".norm2.": ".layer_norm2.",
}
POSITIONS = "text_decoder.bert.embeddings.position_ids"


def to_hf_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A captioner's state dict as BlipForConditionalGeneration's, without what it derives itself:
    the tied head and the counted positions."""
    return {_renamed(k, VISION, BLOCK): v for k, v in state.items() if k not in DERIVED}


def from_hf_names(state: Mapping[str, Tensor], positions: int) -> dict[str, Tensor]:
    """The inverse of `to_hf_names`; `positions` is how many tokens a row can have.

    The tied head is filled in from the word embedding, whether or not it is there. Raises
    CheckpointError where there is none.
    """
    vision, block = ({new: old for old, new in names.items()} for names in (VISION, BLOCK))
    ours = {_renamed(key, vision, block): value for key, value in state.items()}
    ours[POSITIONS] = torch.arange(positions).unsqueeze(0)
    for key, source in DERIVED.items():
        if source is not None:
            if source not in ours:
                raise CheckpointError(f"there is no {source}: this is no captioner")
            ours[key] = ours[source]
    return ours


def _renamed(key: str, beginnings: Mapping[str, str], within: Mapping[str, str]) -> str:
    for old, new in beginnings.items():
        if key.startswith(old):
            key = new + key[len(old) :]
            for part, renamed in within.items():
                key = key.replace(part, renamed)
            break
    return key


def hf_config(captioner: BlipCaptioner, label_smoothing: float = 0.1) -> dict:
    """`config.json` of a captioner. Labels are smoothed as in BLIP, not by transformers' 0."""
    words, vit, decoder = captioner.tokenizer, captioner.visual_encoder, captioner.text_decoder
    tokens = {
        "bos_token_id": words.start,
        "eos_token_id": words.end,
        "sep_token_id": words.end,
        "pad_token_id": words.pad,
    }
    sizes = asdict(decoder.config)
    del sizes["initializer_range"]
    return {
        "architectures": ["BlipForConditionalGeneration"],
        "model_type": "blip",
        "label_smoothing": label_smoothing,
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "blip_text_model",
            "vocab_size": len(words),
            "encoder_hidden_size": vit.embed_dim,
            **sizes,
            "hidden_act": "gelu",
            "is_decoder": True,
            "label_smoothing": label_smoothing,
            **tokens,
        },
        "vision_config": {
            "model_type": "blip_vision_model",
            "hidden_size": vit.embed_dim,
            "intermediate_size": vit.blocks[0].mlp.fc1.out_features,
            "num_hidden_layers": len(vit.blocks),
            "num_attention_heads": vit.blocks[0].attn.num_heads,
            "image_size": vit.patch_embed.img_size[0],
            "patch_size": vit.patch_embed.patch_size[0],
            "hidden_act": "gelu",
            "layer_norm_eps": vit.norm.eps,
        },
    }


def settings_of(config: Mapping) -> dict:
    """The arguments `vit`, `image_size` and `med_config` of `build_captioner`, from `config.json`.

    Raises CheckpointError for what is no BLIP or is built otherwise.
    """
    kind = config.get("model_type") if isinstance(config, Mapping) else None
    parts = [config.get(f"{part}_config") for part in ("text", "vision")] if kind == "blip" else []
    if not parts or not all(isinstance(part, Mapping) for part in parts):
        raise CheckpointError(f"it is of a {kind!r} model, or not whole; a 'blip' is needed")
    # What a file leaves out is transformers' default; the sizes are those of bert-base for both.
    sizes = {**asdict(MedConfig()), "hidden_act": "gelu"}
    undropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    text = {**sizes, **undropped, "num_attention_heads": 8, **config["text_config"]}
    grid = {"image_size": 384, "patch_size": 16, "layer_norm_eps": 1e-5}
    vision = {**sizes, **grid, **config["vision_config"]}
    if (text["hidden_act"], vision["hidden_act"]) != ("gelu", "gelu"):
        raise CheckpointError("its hidden_act is not 'gelu', which alone is built")
    vit = {
        "embed_dim": vision["hidden_size"],
        "depth": vision["num_hidden_layers"],
        "num_heads": vision["num_attention_heads"],
        "patch_size": vision["patch_size"],
        "mlp_ratio": vision["intermediate_size"] / vision["hidden_size"],
        "layer_norm_eps": vision["layer_norm_eps"],
    }
    usual = {"patch_size": 16, "mlp_ratio": 4, "layer_norm_eps": 1e-6}
    for name, sizes in VIT_SIZES.items():
        if vit == {**usual, **{key: sizes[key] for key in NEEDED_SIZES}}:
            vit = name  # brings its drop path with it
            break
    return {
        "vit": vit,
        "image_size": vision["image_size"],
        "med_config": {field.name: text[field.name] for field in fields(MedConfig)},
    }
