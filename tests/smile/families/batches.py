"""What the tiny models share: sizes, words, and batches as processors and collators make them."""

from typing import NamedTuple

import torch
import transformers
from torch import nn

VOCABULARY, IMAGE_TOKEN, START, PAD = 40, 39, 2, 0
VIDEO_TOKEN, IMAGE_START, IMAGE_END = 38, 37, 36
SIZES = {
    "bart": {
        **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 16},
        **{"decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    },
    "bert": {
        **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"intermediate_size": 16, "max_position_embeddings": 32},
    },
    "vit": {
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"intermediate_size": 16, "image_size": 8, "patch_size": 4},
    },
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
}
TOKENS = {
    **{"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": 1},
    **{"decoder_start_token_id": START},
}
# A decoder of today: keys and values are shared by heads of a size of their own.
DECODER = {
    **{"vocab_size": VOCABULARY, **SIZES["bert"], "num_key_value_heads": 1, "head_dim": 8},
    **{"max_position_embeddings": 128, "pad_token_id": PAD, "bos_token_id": START},
    **{"eos_token_id": 1},
}


class Family(NamedTuple):
    """A model, its batch with labels, and where the logits of the labels are: `shift`, whether
    they are one ahead, and `before`, how many places of an image come before the text."""

    model: nn.Module
    batch: dict
    shift: bool
    before: int = 0


def conditional(name, batch, shift=True, **config):
    """Return the model with this name and configuration, and its batch."""
    config = getattr(transformers, f"{name}Config")(**config)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    return Family(model, batch, shift)


def labels_of(text, prompt=0):
    """Return text (B, N) as labels, without padding and the prompt's tokens."""
    labels = text.masked_fill(text == PAD, -100)
    labels[:, :prompt] = -100
    return labels


def text(rows=3, length=7):
    """Return padded sentences of 7, 6 and 5 words, some of them repeated."""
    words = torch.randint(3, 14, (rows, length))
    return words.masked_fill(torch.arange(length) >= length - torch.arange(rows)[:, None], PAD)


def targets():
    return labels_of(text())


def causal_batch():
    tokens = text()
    return {
        "input_ids": tokens,
        "attention_mask": (tokens != PAD).long(),
        "labels": labels_of(tokens, prompt=2),
    }


def after_an_image(places, before=(START,), after=()):
    """Return a causal batch with `before`, the image's places and `after` in front of the text."""
    batch = causal_batch()
    image = torch.tensor([*before, *[IMAGE_TOKEN] * places, *after]).expand(3, -1)
    return {
        "input_ids": torch.cat([image, batch["input_ids"]], 1),
        "attention_mask": torch.cat([torch.ones_like(image), batch["attention_mask"]], 1),
        "labels": torch.cat([torch.full_like(image, -100), batch["labels"]], 1),
    }


def pixels(*shape):
    return torch.randn(*(shape or (3, 3, 8, 8)))
