"""Batches brought to the device while the model works on the one before."""

from collections.abc import Iterable, Iterator
from typing import Callable, Optional

import torch
from torch import Tensor

from captioning.data.image import normalise
from captioning.data.loader import Batch


class Prefetcher:
    """The batches of a loader, each image float32 (B, 3, S, S) on `device`, normalised.

    One batch is always under way. On a GPU it is copied out of pinned memory, and training's bytes
    made into floats, on a stream of their own, beside the model's work; on a CPU there is nothing
    to overlap.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        device: torch.device,
        normalise: Callable[[Tensor], Tensor] = normalise,
    ):
        """normalise: makes bytes into floats, see `Preprocessing`."""
        self.batches, self.device, self.normalise = batches, device, normalise
        on_gpu = device.type == "cuda"
        self.stream: Optional[torch.cuda.Stream] = torch.cuda.Stream(device) if on_gpu else None

    def __iter__(self) -> Iterator[Batch]:
        ahead = None
        for batch in self.batches:
            following = self._start(batch)
            if ahead is not None:
                yield self._finish(*ahead)
            ahead = following
        if ahead is not None:
            yield self._finish(*ahead)

    def _start(self, batch: Batch) -> tuple[Batch, Optional[torch.cuda.Event]]:
        with torch.cuda.stream(self.stream):  # of no effect where it is None
            image = batch["image"].to(self.device, non_blocking=True)
            if not image.is_floating_point():
                image = self.normalise(image)
            batch = {**batch, "image": image}
            return batch, self.stream.record_event() if self.stream else None

    def _finish(self, batch: Batch, arrived: Optional[torch.cuda.Event]) -> Batch:
        if arrived is not None:
            model = torch.cuda.current_stream(self.device)
            model.wait_event(arrived)
            # Else the memory might be given to a later batch while the model still reads it.
            batch["image"].record_stream(model)
        return batch
