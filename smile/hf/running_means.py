"""Averages logged values over batches and processes."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor


class RunningMeans:
    """Weighted means since the last log line. Sums stay on their devices until they are logged."""

    def __init__(self):
        self.sums: dict[str, Tensor] = {}
        self.total = 0.0

    def add(self, values: Mapping[str, Tensor], weight: float) -> None:
        """Add a batch's values by name. weight: that of the batch in the means."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0) + weight * value.detach().float()
        self.total += weight

    def means(self) -> dict[str, float]:
        """Return the mean of each value over all processes, and reset. All processes call this."""
        sums, total = self.sums, self.total
        self.__init__()
        if not sums:
            return {}
        first = next(iter(sums.values()))  # values of router and head may be on different devices
        numbers = [*sums.values(), first.new_tensor(total)]
        numbers = torch.stack([number.to(first.device) for number in numbers])
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(numbers)
        *values, total = numbers.tolist()
        return {name: value / total for name, value in zip(sums, values)}
