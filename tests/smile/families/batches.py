"""What the tiny models share: sizes, words, batches as processors and collators make them."""

from typing import NamedTuple

import torch
import transformers
from torch import nn

VOCABULARY, IMAGE_TOKEN = 40, 39
PAD, END, START, UNKNOWN = range(4)
VIDEO_TOKEN, IMAGE_START, IMAGE_END = 38, 37, 36
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
SIZES = {
    "bart": {
        **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 16},
        **{"decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    },
    "bert": {**SMALL, "num_hidden_layers": 2, "max_position_embeddings": 32},
    "vit": {**SMALL, "num_hidden_layers": 1, "image_size": 8, "patch_size": 4},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
}
TOKENS = {
    **{"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END},
    **{"decoder_start_token_id": START},
}
# A decoder of today: keys and values are shared by heads of a size of their own.
DECODER = {
    **{"vocab_size": VOCABULARY, **SIZES["bert"], "num_key_value_heads": 1, "head_dim": 8},
    **{"max_position_embeddings": 128, "pad_token_id": PAD, "bos_token_id": START},
    **{"eos_token_id": END},
}


class Family(NamedTuple):
    """A model, its batch with labels, and where the logits of the labels are: `shift`, whether
    they are one ahead, and `before`, how many places of an image come before the text."""

    model: nn.Module
    batch: dict
    shift: bool
    before: int = 0


def build(name, batch, shift=True, before=0, **config):
    """Return the model of this class and configuration, with its batch."""
    model = getattr(transformers, name)
    return Family(model(model.config_class(**config)), batch, shift, before)


def labels_of(text, prompt=0):
    """Return text (B, N) as labels, without padding and the prompt's tokens."""
    labels = text.masked_fill(text == PAD, -100)
    labels[:, :prompt] = -100
    return labels


def text():
    """Return padded sentences of 7, 6 and 5 words, some of them repeated."""
    words = torch.randint(3, 14, (3, 7))
    return words.masked_fill(torch.arange(7) >= 7 - torch.arange(3)[:, None], PAD)


def targets():
    return labels_of(text())


def causal_batch():
    tokens = text()
    mask = (tokens != PAD).long()
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels_of(tokens, prompt=2)}


def after_an_image(places, *shape, before=(START,), after=()):
    """Return a causal batch with `before`, the image's places and `after` in front of the text.

    shape: of the image's pixels; see `pixels`.
    """
    batch = causal_batch()
    image = torch.tensor([*before, *[IMAGE_TOKEN] * places, *after]).expand(3, -1)
    return {
        "input_ids": torch.cat([image, batch["input_ids"]], 1),
        "attention_mask": torch.cat([torch.ones_like(image), batch["attention_mask"]], 1),
        "labels": torch.cat([torch.full_like(image, -100), batch["labels"]], 1),
        "pixel_values": pixels(*shape),
    }


def pixels(*shape):
    return torch.randn(*(shape or (3, 3, 8, 8)))


WORDS = """
a red blue green yellow small large disc ring block star on sand grass snow night left right of the
above below user assistant model describe image two
"""
PLACES = (
    *("<fake_token_around_image>", "<global-img>"),
    *(f"<row_{i}_col_{j}>" for i in (1, 2) for j in (1, 2)),
)


def tokenizer(image="<image>", start="<image_start>", end="<image_end>", places=PLACES, **named):
    """Each word is a token, with the id of the tiny models. named: tokens by attribute."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = {"<pad>": PAD, "<end>": END, "<start>": START, "<unk>": UNKNOWN}
    known.update({word: 4 + n for n, word in enumerate(WORDS.split())})
    known.update({end: IMAGE_END, start: IMAGE_START, "<video>": VIDEO_TOKEN})
    known.update({image or "<image>": IMAGE_TOKEN})
    known.update({place: IMAGE_TOKEN + 1 + n for n, place in enumerate(places)})
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([start, end, "<video>", image or "<image>", *places])
    named = {"image_token": image, **named} if image else named
    marks = {"pad_token": "<pad>", "bos_token": "<start>", "eos_token": "<end>"}
    marks.update(unk_token="<unk>", tokenizer_object=made, extra_special_tokens=named)
    return transformers.PreTrainedTokenizerFast(**marks)
