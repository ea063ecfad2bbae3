"""The two captioners that are measured: ours, and transformers' BLIP with the same weights."""

import tempfile
from pathlib import Path
from typing import Union

import torch
from torch import nn

from BLIP import BlipCaptioner, build_captioner
from smile import Objective

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PROMPT = ("a", "picture", "of")
BERT_WORDS = 30522
TINY = {
    "vit": {"embed_dim": 32, "depth": 2, "num_heads": 4},
    "image_size": 48,
    "med_config": {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    },
}

# What transformers calls the parameters of the image encoder; the decoder's names are the same.
THEIR_NAMES = {
    "visual_encoder.cls_token": "vision_model.embeddings.class_embedding",
    "visual_encoder.pos_embed": "vision_model.embeddings.position_embedding",
    "visual_encoder.patch_embed.proj.": "vision_model.embeddings.patch_embedding.",
    "visual_encoder.norm.": "vision_model.post_layernorm.",
    "visual_encoder.blocks.": "vision_model.encoder.layers.",
    ".attn.qkv.": ".self_attn.qkv.",
    ".attn.proj.": ".self_attn.projection.",
    ".norm1.": ".layer_norm1.",
    ".norm2.": ".layer_norm2.",
}


def our_captioner(tiny: bool, objective: Union[str, dict[str, float]] = "mle") -> BlipCaptioner:
    """BLIP-base at 384 pixels with made-up weights and words, always the same; or a tiny one."""
    torch.manual_seed(0)
    words = [*SPECIAL_TOKENS, *PROMPT]
    words += [f"w{index}" for index in range(len(words), 60 if tiny else BERT_WORDS)]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("\n".join(words) + "\n")
        sizes = TINY if tiny else {}
        return build_captioner(str(vocabulary), objective=Objective(objective), **sizes)


def their_captioner(ours: BlipCaptioner, share: bool = False) -> nn.Module:
    """transformers' BlipForConditionalGeneration of the same sizes, dropout and label smoothing.

    It holds copies of the weights, or, to train in turn with ours, the very parameters. Raises
    ImportError where transformers has no BLIP.
    """
    from transformers import BlipConfig, BlipForConditionalGeneration

    vit, decoder = ours.visual_encoder, ours.text_decoder
    embeddings, layer = decoder.bert["embeddings"], decoder.layers[0]
    config = BlipConfig(
        text_config={
            "vocab_size": len(ours.tokenizer),
            "hidden_size": embeddings.word_embeddings.embedding_dim,
            "encoder_hidden_size": vit.embed_dim,
            "intermediate_size": layer.intermediate["dense"].out_features,
            "num_hidden_layers": len(decoder.layers),
            "num_attention_heads": layer.attention.heads,
            "max_position_embeddings": decoder.max_length,
            "hidden_dropout_prob": embeddings.dropout.p,
            "attention_probs_dropout_prob": layer.attention.dropout,
            "label_smoothing": decoder.objective.label_smoothing,
            "bos_token_id": ours.tokenizer.start,
            "sep_token_id": ours.tokenizer.end,
            "eos_token_id": ours.tokenizer.end,
            "pad_token_id": ours.tokenizer.pad,
        },
        vision_config={
            "hidden_size": vit.embed_dim,
            "intermediate_size": vit.blocks[0].mlp.fc1.out_features,
            "num_hidden_layers": len(vit.blocks),
            "num_attention_heads": vit.blocks[0].attn.num_heads,
            "image_size": vit.patch_embed.img_size[0],
            "patch_size": vit.patch_embed.patch_size[0],
            "layer_norm_eps": vit.norm.eps,
        },
    )
    theirs = BlipForConditionalGeneration(config)
    state = {}
    for key, value in ours.state_dict(keep_vars=share).items():
        for name, their_name in THEIR_NAMES.items():
            key = key.replace(name, their_name) if "text_decoder" not in key else key
        state[key] = value
    state = {key: state[key] for key in theirs.state_dict()}
    theirs.load_state_dict(state, assign=share)
    return theirs
