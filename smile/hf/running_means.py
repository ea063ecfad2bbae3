"""Averages logged values over batches and processes."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor


class RunningMeans:
    """Weighted means of the values since the last log line.

    Sums of values stay on the values' devices until they are logged, which needs no synchronisation
    at every batch.
    """

    def __init__(self):
        self.sums: dict[str, Tensor] = {}
        self.total = 0.0

    def add(self, values: Mapping[str, Tensor], weight: float) -> None:
        """Add a batch's values by name. weight: the weight of the batch in the means."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0) + weight * value.detach().float()
        self.total += weight

    def means(self) -> dict[str, float]:
        """Return the mean of each value over all processes, and reset all sums.

        All processes must call this method, because it communicates.
        """
        sums = self.sums
        total = self.total
        self.sums = {}
        self.total = 0.0
        if not sums:
            return {}
        # Values of routers and of the head may be on different devices, so all are moved to one.
        first = next(iter(sums.values()))
        numbers = [*sums.values(), first.new_tensor(total)]
        numbers = torch.stack([number.to(first.device) for number in numbers])
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(numbers)
        *values, total = numbers.tolist()
        return {name: value / total for name, value in zip(sums, values)}
