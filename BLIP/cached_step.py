"""The decoder's step function for `decoding`, with a cache of keys and values."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from BLIP.med import Attention, KeysValues, TextDecoder


class CachedStep:
    """See `decoding.Step`; after the first call k is constant and each call appends one token.

    An image's keys and values are computed once, for all its rows. Those of the captions are never
    moved: the k rows of an image share its slots and append side by side, and `mask` marks the
    slots of each row's own past. When beams are reordered only the mask changes.
    """

    def __init__(
        self,
        decoder: TextDecoder,
        image_embeds: Tensor,
        max_length: int,
        other: Optional[Tensor] = None,
    ):
        """image_embeds: (B, P, width); max_length: tokens of the longest row.

        other: of the second stream, (B or 1, P, width), see `decoding.guided`.
        """
        self.decoder = decoder
        self.max_length = max_length
        self.image = [
            _image_keys_values(layer.crossattention, image_embeds, other)
            for layer in decoder.layers
        ]
        self.own: list[KeysValues] = []  # each (b, heads, capacity, d)
        self.length = 0  # of the rows, in tokens
        self.used = 0  # slots of an image
        self.mask = torch.empty(0)  # bool (b, k, capacity)

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor:
        if rows is None:
            hidden = self._prompt(tokens.flatten(0, 1))
        else:
            self._follow(rows)
            hidden = self._append(tokens)
        return self.decoder.cls["predictions"](hidden).unflatten(0, tokens.shape[:2])

    def _prompt(self, tokens: Tensor) -> Tensor:
        """The first call: tokens (B, n), one row an image -> hidden (B, H) of the last."""
        hidden = self.decoder.bert["embeddings"](tokens)
        for layer, image in zip(self.decoder.layers, self.image):
            own = layer.attention.keys_values(hidden)
            self.own.append(own)
            hidden = layer.attend(hidden, own, image, is_causal=True)
        self.length = self.used = tokens.size(1)
        self.mask = torch.ones_like(tokens, dtype=torch.bool).unsqueeze(1)  # (B, 1, n)
        return hidden[:, -1]

    def _append(self, tokens: Tensor) -> Tensor:
        """One token for each row, (b, k, 1) -> hidden (b * k, H)."""
        images, rows, _ = tokens.shape
        new = slice(self.used, self.used + rows)
        self.mask[:, :, new] = torch.eye(rows, dtype=torch.bool, device=tokens.device)
        mask = self.mask[:, None, :, : new.stop]  # (b, 1, k, slots)
        hidden = self.decoder.bert["embeddings"](tokens.flatten(0, 1), self.length)
        for layer, own, image in zip(self.decoder.layers, self.own, self.image):
            added = layer.attention.keys_values(hidden.view(images, rows, -1))
            for cache, values in zip(own, added):
                cache[:, :, new] = values
            key, value = own
            hidden = layer.attend(
                hidden, (key[:, :, : new.stop], value[:, :, : new.stop]), image, mask
            )
        self.length += 1
        self.used = new.stop
        return hidden[:, 0]

    def _follow(self, rows: Tensor) -> None:
        """Let rows (b, k) continue those of the last call; images without rows are dropped."""
        before = self.mask.size(1)
        if rows.size(0) < self.mask.size(0):
            images = rows[:, 0] // before
            self.image = [(key[images], value[images]) for key, value in self.image]
            self.own = [(key[images], value[images]) for key, value in self.own]
        self.mask = self.mask.flatten(0, 1)[rows]
        if self.mask.size(2) == self.used:  # only the prompt so far; now k is known
            free = rows.size(1) * (self.max_length - self.used)
            self.own = [
                (F.pad(key, (0, 0, 0, free)), F.pad(value, (0, 0, 0, free)))
                for key, value in self.own
            ]
            self.mask = F.pad(self.mask, (0, free))


def _image_keys_values(
    attention: Attention, image_embeds: Tensor, other: Optional[Tensor]
) -> KeysValues:
    """Of both streams, contiguous, because every step reads all of it."""
    images = attention.keys_values(image_embeds)
    if other is None:
        return tuple(x.contiguous() for x in images)
    others = attention.keys_values(other)
    return tuple(torch.cat([x, y.expand_as(x)]) for x, y in zip(images, others))
