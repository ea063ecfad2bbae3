"""Means over the batches between two logs, of all processes."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor


class Interval:
    """Sums of values and of their weights on their own devices, read when they are logged."""

    def __init__(self):
        self.sums: dict[str, Tensor] = {}
        self.total = 0.0

    def add(self, values: Mapping[str, Tensor], weight: float) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0) + weight * value.detach().float()
        self.total += weight

    def means(self) -> dict[str, float]:
        """The mean of each over all processes, which have to call this together; starts again."""
        sums, total = self.sums, self.total
        self.__init__()
        if not sums:
            return {}
        first = next(iter(sums.values()))  # a router may be on another device than the head
        numbers = [each.to(first.device) for each in sums.values()]
        numbers = torch.stack([*numbers, first.new_tensor(total)])
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(numbers)
        *found, total = numbers.tolist()
        return {name: value / total for name, value in zip(sums, found)}
