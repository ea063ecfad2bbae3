"""Runs decoding steps on tensors of fixed shape and address, for torch.compile and CUDA graphs."""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from BLIP.med import KeysValues
from BLIP.step import CachedStep, append_tokens
from BLIP.text_decoder import TextDecoder


class StaticCache(NamedTuple):
    """The tensors that a compiled step reads and writes, for S images with k rows each.

    A row is a beam or a sample. As in `CachedStep`, keys and values are never moved. In each step,
    each of the k rows of an image fills one slot of the image's cache. Reordering beams changes
    only `mask`.

    - tokens: int64 (S, k), the input tokens of this step
    - position: int64 (), the position of these tokens in their rows
    - slots: int64 (k,), the slots of `past` to which this step writes keys and values
    - mask: bool (S, k, capacity), true for the slots that a row attends to
    - past: keys and values of self-attention, (S, heads, capacity, d), a pair for each layer
    - image_kv: keys and values of cross-attention, (S, heads, P, d), a pair for each layer
    """

    tokens: Tensor
    position: Tensor
    slots: Tensor
    mask: Tensor
    past: list[KeysValues]
    image_kv: list[KeysValues]


class CompiledStepFactory:
    """Makes a `CompiledStep` for each batch. All batches share one cache.

    `BlipCaptioner.for_inference` puts it in place of the class `CachedStep`. On a GPU, kernel
    launches take most of the time of a step with few rows. A CUDA graph replays all kernels in one
    launch, but needs fixed shapes and addresses. Therefore finished images keep their rows,
    attention covers the whole capacity, and a smaller batch uses a part of the cache.
    """

    def __init__(self, **options: Any):
        """options: arguments of torch.compile."""
        self.append = torch.compile(append_to_static, dynamic=False, **options)
        self.cache: Optional[StaticCache] = None
        self._layout: tuple = ()

    def __call__(self, *arguments: Any) -> "CompiledStep":
        """Return the step function of a batch. arguments: those of `CachedStep`."""
        return CompiledStep(self, *arguments)

    def cache_for(self, past: list[KeysValues], image_kv: list[KeysValues], rows: int, steps: int):
        """Return the cache. Reallocate it if it is too small or has another layout.

        - past, image_kv: keys and values of the prompts and of the images
        - rows: k, the number of rows per image
        - steps: the maximum number of tokens to append to each row
        """
        images, heads, prompt, d = past[0][0].shape
        image_key = image_kv[0][0]
        capacity = prompt + steps * rows
        layout = (capacity, rows, image_key.shape[1:], image_key.device)
        if self.cache is None or layout != self._layout or len(self.cache.tokens) < images:
            self.cache, self._layout = None, layout  # free the old cache before the new one is made
            self.cache = StaticCache(
                tokens=_static_zeros(image_key, images, rows, dtype=torch.int64),
                position=_static_zeros(image_key, dtype=torch.int64),
                slots=_static_zeros(image_key, rows, dtype=torch.int64),
                mask=_static_zeros(image_key, images, rows, capacity, dtype=torch.bool),
                past=[
                    tuple(_static_zeros(x, images, heads, capacity, d) for x in pair)
                    for pair in past
                ],
                image_kv=[tuple(_static_zeros(x, *x.shape) for x in pair) for pair in image_kv],
            )
        return self.cache


def _static_zeros(like: Tensor, *shape: int, dtype=None) -> Tensor:
    """Return zeros on the device of `like`, by default with its dtype.

    A static address lets the CUDA graph read the tensor without a copy. With guard=False, a new
    cache at another address makes torch record the graph again, but not compile it again.
    """
    zeros = like.new_zeros(shape, dtype=dtype)
    torch._dynamo.mark_static_address(zeros, guard=False)
    return zeros


class CompiledStep(CachedStep):
    """A step function, see `decoding.Step`, that appends tokens by a compiled function.

    active: int64 (b,), the indices in the cache of the images that are not finished.
    """

    def __init__(self, factory: CompiledStepFactory, *arguments: Any):
        super().__init__(*arguments)
        self.factory = factory
        self.active = torch.empty(0, dtype=torch.int64)

    def _reorder(self, rows: Tensor) -> None:
        """Reorder the mask, so that new row i continues old row rows[i]. rows: (b, k).

        An image without rows is finished. It leaves `active`, but keeps its part of the cache.
        """
        is_first = not len(self.active)
        rows_before = 1 if is_first else rows.size(1)
        if is_first:  # the first call with k rows per image, so that the cache's size is known
            self._fill_cache(rows.size(1))
        self.active = self.active[rows[:, 0] // rows_before]
        mask = self.factory.cache.mask
        mask[self.active] = mask[self.active.unsqueeze(1), rows % rows_before]

    def _fill_cache(self, rows: int) -> None:
        """Copy keys and values of prompts and images into the cache. rows: k."""
        cache = self.factory.cache_for(
            self.past, self.image_kv, rows, self.max_length - self.used_slots
        )
        images = len(self.past[0][0])
        pairs = zip([*cache.past, *cache.image_kv], [*self.past, *self.image_kv])
        for static_pair, pair in pairs:
            for x, values in zip(static_pair, pair):
                x[:images, :, : values.size(2)] = values
        cache.mask.zero_()
        cache.mask[..., : self.used_slots] = True
        cache.position.fill_(self.length)
        cache.slots.copy_(torch.arange(self.used_slots, self.used_slots + rows))
        self.active = torch.arange(images, device=cache.tokens.device)
        self.past = []
        self.image_kv = []

    def _append(self, tokens: Tensor) -> Tensor:
        """Append one token to each row: (b, k, 1) -> hidden states (b * k, H)."""
        cache = self.factory.cache
        cache.tokens[self.active] = tokens.squeeze(2)
        torch.compiler.cudagraph_mark_step_begin()  # allows reuse of the previous output's memory
        hidden = self.factory.append(self.decoder, cache)  # (S * k, H)
        cache.position.add_(1)
        cache.slots.add_(tokens.size(1))
        return hidden.unflatten(0, cache.tokens.shape)[self.active].flatten(0, 1)


def append_to_static(decoder: TextDecoder, cache: StaticCache) -> Tensor:
    """Return hidden states (S * k, H) of `cache.tokens`.

    Also writes the keys and values of the tokens into the cache, and marks their slots in the mask.
    """
    images, rows = cache.tokens.shape
    own_slots = torch.eye(rows, dtype=torch.bool, device=cache.tokens.device)
    cache.mask.index_copy_(2, cache.slots, own_slots.expand(images, -1, -1))
    tokens = cache.tokens.unsqueeze(2)
    # The compiler of torch 2.8 cannot slice a NamedTuple, so that the fields are listed.
    cache_fields = (cache.slots, cache.mask, cache.past, cache.image_kv)
    return append_tokens(decoder, tokens, cache.position, *cache_fields)
