"""Where an encoder-decoder looks for a word: its cross-attention to the places of the image."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

import torch
from torch import Tensor, nn


def with_cross_attention(
    model: nn.Module, batch: dict[str, Tensor], image_token: Optional[int]
) -> tuple[Any, Optional[Tensor]]:
    """The output for one photo and caption, and of each of its N inputs where it looks, (N, G * G)
    in rows that sum to 1: the mean over layers and heads.

    None without cross-attention of its own decoder, and where the image's places make no square. A
    place before them, such as a class token's or a mean's, is left out.
    """
    with _attention_shown(model):
        output = model(**batch, output_attentions=True)
    layers = [layer for layer in output.get("cross_attentions") or () if layer is not None]
    if not layers:
        return output, None
    looked = torch.stack(layers).float().mean((0, 2))[0]  # (N, places)
    if "input_ids" in batch:
        looked = looked[:, batch["input_ids"][0] == image_token]
    places = math.isqrt(looked.size(1)) ** 2
    if not places or looked.size(1) - places > 1:
        return output, None
    looked = looked[:, -places:]
    return output, looked / looked.sum(1, keepdim=True)


@contextmanager
def _attention_shown(model: nn.Module) -> Iterator[None]:
    """With attention that says what its weights are."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = {key: getattr(c, "_attn_implementation", None) for key, c in configs.items()}
    known = {key: c for key, c in configs.items() if before[key] is not None}
    try:
        for config in known.values():
            config._attn_implementation = "eager"
        yield
    finally:
        for key, config in known.items():
            config._attn_implementation = before[key]
