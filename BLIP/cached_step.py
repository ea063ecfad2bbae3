"""The decoder's step function for `decoding`: one call a token, with keys and values remembered."""

from typing import Optional

import torch
from torch import Tensor

from BLIP.med import KeysValues, TextDecoder


class CachedStep:
    """See `decoding.Step`. Keys and values of the image are computed once, for all its rows."""

    def __init__(self, decoder: TextDecoder, image_embeds: Tensor):
        """image_embeds: (B, P, width)."""
        self.decoder = decoder
        self.image = [layer.crossattention.keys_values(image_embeds) for layer in decoder.layers]
        self.past: list[KeysValues] = []
        self.length = 0
        self.rows_an_image = 1

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor:
        images, rows_an_image, new = tokens.shape
        if rows is not None:
            self._follow(rows)
        self.rows_an_image = rows_an_image
        hidden = self.decoder.bert["embeddings"](tokens.flatten(0, 1), self.length)
        for index, layer in enumerate(self.decoder.layers):
            own = self._remember(index, layer.attention.keys_values(hidden))
            hidden = layer(hidden, own, self.image[index], is_causal=new > 1)
        self.length += new
        return self.decoder.cls["predictions"](hidden[:, -1]).unflatten(0, (images, rows_an_image))

    def _remember(self, index: int, new: KeysValues) -> KeysValues:
        if index == len(self.past):
            self.past.append(new)
        else:
            key, value = (torch.cat(pair, dim=2) for pair in zip(self.past[index], new))
            self.past[index] = (key, value)
        return self.past[index]

    def _follow(self, rows: Tensor) -> None:
        """Put the past of `rows` (b, k) in their place, and drop images that have no row left."""
        if rows.size(0) < self.image[0][0].size(0):
            images = rows[:, 0] // self.rows_an_image
            self.image = [(key[images], value[images]) for key, value in self.image]
        self.past = [(key[rows.flatten()], value[rows.flatten()]) for key, value in self.past]
