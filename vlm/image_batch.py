"""A batch of photos as their processor made them, whatever their sizes."""

from typing import Union

import torch
from torch import Tensor

Item = dict[str, Tensor]


class Pictures:
    """B photos with their question, each a dict of tensors as a processor makes a batch of one.

    It has the methods of `captioning.captioners.interface.Images`. Photos are put together where
    the model reads them (`rows.py`), since captions come in between.
    """

    def __init__(self, items: list[Item]):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Union[slice, list[int]]) -> "Pictures":
        found = self.items[index] if isinstance(index, slice) else [self.items[i] for i in index]
        return Pictures(found)

    def repeated(self, count: int) -> "Pictures":
        """Each photo `count` times, side by side."""
        return Pictures([item for item in self.items for _ in range(count)])

    def without(self, key: str) -> "Pictures":
        return Pictures([{k: v for k, v in item.items() if k != key} for item in self.items])

    def to(self, device: torch.device, non_blocking: bool = False) -> "Pictures":
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Pictures":
        return self._each(Tensor.pin_memory)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        self._each(lambda tensor: tensor.record_stream(stream))

    def is_floating_point(self) -> bool:
        """There is nothing left to normalise."""
        return True

    def _each(self, change) -> "Pictures":
        return Pictures([{k: change(v) for k, v in item.items()} for item in self.items])
