"""Defines the step function of BLIP's decoder for `decoding`, with a cache of keys and values."""

from typing import Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from BLIP.med import KeysValues, causal_mask
from BLIP.text_decoder import TextDecoder


class CachedStep:
    """A step function, see `decoding.Step`. Each call after the first appends one token per row.

    The keys and values of an image are computed once and used by all k rows of the image. The keys
    and values of captions are never moved. In each step, each of the k rows of an image fills one
    slot of the image's cache, and `mask` marks the slots that belong to the past of each row.
    Reordering beams changes only the mask. Shapes: b unfinished images of B, d = H / heads.
    """

    def __init__(self, decoder: TextDecoder, image_embeds: Tensor, max_length: int):
        """Compute the keys and values of the images.

        image_embeds: (B, P, width). max_length: the maximum number of tokens of a row, including
        the prompt.
        """
        self.decoder = decoder
        self.max_length = max_length
        # Contiguous, because every step reads them.
        self.image_kv = [
            tuple(x.contiguous() for x in layer.crossattention.keys_values(image_embeds))
            for layer in decoder.layers
        ]
        # Keys and values of self-attention for each layer, each (b, heads, capacity, d).
        self.past: list[KeysValues] = []
        self.length = 0  # the number of tokens of each row so far
        self.used_slots = 0  # the number of filled slots of each image
        self.mask = torch.empty(0)  # bool (b, k, capacity)

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor:
        if rows is None:
            hidden = self._prompt(tokens.flatten(0, 1))
        else:
            self._reorder(rows)
            hidden = self._append(tokens)
        return self.decoder.cls["predictions"](hidden).unflatten(0, tokens.shape[:2])

    def _prompt(self, tokens: Tensor) -> Tensor:
        """Process the prompts: tokens (B, n) -> hidden states (B, H) of the last tokens."""
        hidden, mask = self.decoder.bert["embeddings"](tokens), causal_mask(tokens)
        for layer, image_kv in zip(self.decoder.layers, self.image_kv):
            self_kv = layer.attention.keys_values(hidden)
            self.past.append(self_kv)
            hidden = layer.attend(hidden, self_kv, image_kv, mask)
        self.length = self.used_slots = tokens.size(1)
        self.mask = torch.ones_like(tokens, dtype=torch.bool).unsqueeze(1)  # (B, 1, n)
        return hidden[:, -1]

    def _append(self, tokens: Tensor) -> Tensor:
        """Append one token to each row: (b, k, 1) -> hidden states (b * k, H)."""
        rows = tokens.size(1)
        new = slice(self.used_slots, self.used_slots + rows)
        self.mask[:, :, new] = torch.eye(rows, dtype=torch.bool, device=tokens.device)
        past = [tuple(x[:, :, : new.stop] for x in pair) for pair in self.past]
        mask = self.mask[:, :, : new.stop]
        hidden = append_tokens(self.decoder, tokens, self.length, new, mask, past, self.image_kv)
        self.length += 1
        self.used_slots = new.stop
        return hidden

    def _reorder(self, rows: Tensor) -> None:
        """Reorder the cache, so that new row i continues old row rows[i]. rows: (b, k).

        An image without rows is finished, and its cache is dropped.
        """
        if len(rows) < len(self.mask):
            images = rows[:, 0] // self.mask.size(1)
            self.image_kv = [(key[images], value[images]) for key, value in self.image_kv]
            self.past = [(key[images], value[images]) for key, value in self.past]
        self.mask = self.mask.flatten(0, 1)[rows]
        if self.mask.size(2) == self.used_slots:  # only the prompt is cached, so allocate the rest
            free = rows.size(1) * (self.max_length - self.used_slots)
            self.past = [
                (F.pad(key, (0, 0, 0, free)), F.pad(value, (0, 0, 0, free)))
                for key, value in self.past
            ]
            self.mask = F.pad(self.mask, (0, free))


def append_tokens(
    decoder: TextDecoder,
    tokens: Tensor,
    position: Union[int, Tensor],
    slots: Union[slice, Tensor],
    mask: Tensor,
    past: list[KeysValues],
    image_kv: list[KeysValues],
) -> Tensor:
    """Append one token to each row. Return the tokens' hidden states, (b * k, H).

    `CompiledStep` compiles this function.

    - tokens: int64 (b, k, 1)
    - position: the position of the tokens in their rows
    - past, image_kv: for each layer, the keys and values of self-attention (b, heads, capacity, d)
      and of cross-attention (b, heads, P, d)
    - slots: the k slots of `past` to which the keys and values of the tokens are written
    - mask: bool (b, k, capacity), true for the slots that a row attends to
    """
    images, rows, _ = tokens.shape
    hidden = decoder.bert["embeddings"](tokens.flatten(0, 1), position)
    for layer, layer_past, layer_image_kv in zip(decoder.layers, past, image_kv):
        new_kv = layer.attention.keys_values(hidden.view(images, rows, -1))
        for cache, values in zip(layer_past, new_kv):
            cache[:, :, slots] = values.to(cache.dtype)
        hidden = layer.attend(hidden, layer_past, layer_image_kv, mask.unsqueeze(1))
    return hidden[:, 0]
