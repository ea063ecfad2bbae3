"""Decoding steps whose tensors keep their shapes and places, to be compiled once and replayed."""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from BLIP.cached_step import CachedStep
from BLIP.med import KeysValues, TextDecoder


class Memory(NamedTuple):
    """What a compiled step reads and writes, for S images with k rows each.

    tokens: int64 (S, k); position: int64 (), that of the tokens; places: int64 (k,), where their
    keys go; sees: bool (S, k, capacity) and own: (S, heads, capacity, d), see `CachedStep`; image:
    (S, heads, P, d). Of own and image a pair for each layer.
    """

    tokens: Tensor
    position: Tensor
    places: Tensor
    sees: Tensor
    own: list[KeysValues]
    image: list[KeysValues]


class StaticSteps:
    """Makes the step function of each batch of images, called as `CachedStep` is.

    On a GPU the launch of its kernels bounds a step of few rows; a CUDA graph launches them all at
    once. It needs shapes and addresses that stay: an image whose captions are done keeps its rows,
    all capacity is looked at, and the memory serves one batch after the other, a smaller one in a
    part of it.
    """

    def __init__(self, **options: Any):
        """options: those of torch.compile."""
        self.append = torch.compile(_append, dynamic=False, **options)
        self.memory: Optional[Memory] = None
        self._kind: tuple = ()

    def __call__(self, decoder: TextDecoder, image_embeds: Tensor, max_length: int) -> "StaticStep":
        return StaticStep(self, decoder, image_embeds, max_length)

    def memory_for(self, own: list[KeysValues], image: list[KeysValues], rows: int, room: int):
        """Memory for at least as many images as in `image`; own: the prompts' keys and values."""
        images, heads, prompt, d = own[0][0].shape
        key, capacity = image[0][0], prompt + room
        kind = (heads, capacity, rows, key.shape[1:], own[0][0].dtype, key.dtype, key.device)
        if self.memory is None or kind != self._kind or len(self.memory.tokens) < images:
            new = key.new_zeros
            self.memory, self._kind = None, kind  # also where there is no room for another
            self.memory = Memory(
                new(images, rows, dtype=torch.int64),
                new((), dtype=torch.int64),
                new(rows, dtype=torch.int64),
                new(images, rows, capacity, dtype=torch.bool),
                [tuple(x.new_zeros(images, heads, capacity, d) for x in pair) for pair in own],
                [tuple(torch.zeros_like(x) for x in pair) for pair in image],
            )
            # The first four are tensors, the others pairs of them for each layer.
            pairs = [x for pair in (*self.memory.own, *self.memory.image) for x in pair]
            for tensor in (*self.memory[:4], *pairs):
                # So that a CUDA graph may write to it. What is compiled serves other memory, too,
                # for which the graph alone is recorded anew.
                torch._dynamo.mark_static_address(tensor, guard=False)
        return self.memory


class StaticStep(CachedStep):
    """See `decoding.Step`. `live` int64 (b,) says where in the memory the images are."""

    def __init__(
        self, steps: StaticSteps, decoder: TextDecoder, image_embeds: Tensor, max_length: int
    ):
        super().__init__(decoder, image_embeds, max_length)
        self.steps = steps
        self.live = torch.empty(0, dtype=torch.int64)

    def _follow(self, rows: Tensor) -> None:
        first = not len(self.live)
        before = 1 if first else rows.size(1)
        if first:  # now k is known
            self._settle(rows.size(1))
        self.live = self.live[rows[:, 0] // before]
        sees = self.steps.memory.sees
        sees[self.live] = sees[self.live.unsqueeze(1), rows % before]

    def _settle(self, rows: int) -> None:
        """Bring the prompts' and the images' keys and values into the memory."""
        room = rows * (self.max_length - self.used)
        memory = self.steps.memory_for(self.own, self.image, rows, room)
        images = len(self.own[0][0])
        for cache, prompt in zip(memory.own, self.own):
            for x, values in zip(cache, prompt):
                x[:images, :, : self.used] = values
        for cache, image in zip(memory.image, self.image):
            for x, values in zip(cache, image):
                x[:images] = values
        memory.sees.zero_()
        memory.sees[..., : self.used] = True
        memory.position.fill_(self.length)
        memory.places.copy_(torch.arange(self.used, self.used + rows))
        self.live = torch.arange(images, device=memory.tokens.device)
        self.own, self.image = [], []

    def _append(self, tokens: Tensor) -> Tensor:
        """One token for each row, (b, k, 1) -> hidden (b * k, H)."""
        memory = self.steps.memory
        memory.tokens[self.live] = tokens.squeeze(2)
        torch.compiler.cudagraph_mark_step_begin()  # what the last step returned has been used
        hidden = self.steps.append(self.decoder, memory)  # (S, k, H)
        memory.position.add_(1)
        memory.places.add_(tokens.size(1))
        return hidden[self.live].flatten(0, 1)


def _append(decoder: TextDecoder, memory: Memory) -> Tensor:
    """The tokens' hidden states (S, k, H); their keys, values and sight are added to the memory."""
    images, rows = memory.tokens.shape
    own_sight = torch.eye(rows, dtype=torch.bool, device=memory.tokens.device)
    memory.sees.index_copy_(2, memory.places, own_sight.expand(images, -1, -1))
    mask = memory.sees.unsqueeze(1)  # (S, 1, k, capacity)
    hidden = decoder.bert["embeddings"](memory.tokens.view(-1, 1), memory.position)
    for layer, own, image in zip(decoder.layers, memory.own, memory.image):
        added = layer.attention.keys_values(hidden.view(images, rows, -1))
        for cache, values in zip(own, added):
            cache.index_copy_(2, memory.places, values.to(cache.dtype))
        hidden = layer.attend(hidden, own, image, mask)
    return hidden.view(images, rows, -1)
