"""Computes attention maps of an encoder-decoder from its cross-attention to image positions."""

import math
from typing import Any, Optional

import torch
from torch import Tensor, nn


def run_with_cross_attention(
    model: nn.Module, batch: dict[str, Tensor], image_token: int
) -> tuple[Any, Optional[Tensor]]:
    """Run the model on one photo and caption; return its output and the attention (N, G * G).

    N is the number of input tokens of the decoder, and G * G is the number of image positions. The
    attention is the mean over layers and heads, and each row sums to 1. A single position before
    the square grid, such as a class token, is left out. The attention is None if the model has no
    cross-attention, or if its image positions do not form a square grid. image_token: the id that
    marks image positions in `input_ids`.
    """
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")  # others do not return attention weights
    try:
        output = model(**batch, output_attentions=True)
    finally:
        model.set_attn_implementation(implementation)
    layers = output.get("cross_attentions")
    if not layers:
        return output, None
    maps = torch.stack(layers).float().mean((0, 2))[0]  # (N, encoder positions)
    if "input_ids" in batch:
        maps = maps[:, batch["input_ids"][0] == image_token]
    patches = math.isqrt(maps.size(1)) ** 2
    if not patches or maps.size(1) - patches > 1:
        return output, None
    maps = maps[:, -patches:]
    return output, maps / maps.sum(1, keepdim=True)
