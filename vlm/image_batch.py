"""Defines a batch of preprocessed photos, which may differ in size."""

from collections.abc import Container
from typing import Union

import torch
from torch import Tensor

Item = dict[str, Tensor]  # the output of `vlm.prompt.PromptProcessor` for one photo


class ImageBatch:
    """B photos with their prompts. items: the output of the processor for each photo.

    Implements `captioning.captioners.interface.Images`. `vlm.collate` later pads the items and
    their captions to one batch of tensors.
    """

    def __init__(self, items: list[Item]):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Union[slice, list[int]]) -> "ImageBatch":
        selected = self.items[index] if isinstance(index, slice) else [self.items[i] for i in index]
        return ImageBatch(selected)

    def select(self, names: Container[str]) -> "ImageBatch":
        """Return the photos with only the inputs that `names` contains."""
        return ImageBatch([{k: v for k, v in item.items() if k in names} for item in self.items])

    def repeat(self, count: int) -> "ImageBatch":
        """Return a batch with each photo `count` times in a row."""
        return ImageBatch([item for item in self.items for _ in range(count)])

    def to(self, device: torch.device, non_blocking: bool = False) -> "ImageBatch":
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "ImageBatch":
        return self._map_tensors(Tensor.pin_memory)

    def share_memory_(self) -> "ImageBatch":
        """Move the tensors to shared memory in place."""
        return self._map_tensors(Tensor.share_memory_)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        self._map_tensors(lambda tensor: tensor.record_stream(stream))

    def is_floating_point(self) -> bool:
        """Return True, because the processor has already normalised the images."""
        return True

    def _map_tensors(self, function) -> "ImageBatch":
        return ImageBatch([{k: function(v) for k, v in item.items()} for item in self.items])
