"""Rewards computed in processes of their own, while the device goes on with the step."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Callable, NamedTuple, Optional

import numpy as np

from captioning.data.annotations import ImageId
from captioning.rewards.interface import Reward, Said
from captioning.runtime import signals
from captioning.runtime.errors import UserError

Captions = Sequence[Sequence[Said]]

_rewards: Mapping[str, Reward] = {}  # of a worker


class Rewards:
    """The rewards of a run by name. Those of a model are computed where they are asked for.

    processes: that share the others; 0 for the run's own. They end with it.
    """

    def __init__(self, rewards: Mapping[str, Reward], processes: int = 0):
        self.rewards, self.processes = rewards, processes
        apart = {name: reward for name, reward in rewards.items() if not reward.on_device}
        self.apart = list(apart) if processes else []
        self.pool: Optional[ProcessPoolExecutor] = None
        if self.apart:
            self.pool = ProcessPoolExecutor(processes, initializer=_begin, initargs=(apart,))
            # Now, before this process has a model and a GPU, of which they need nothing.
            for waiting in [self._submit(self.apart[0], [], []) for _ in range(processes)]:
                _result(waiting)

    def ask(self, image_ids: Sequence[ImageId], captions: Captions) -> "Asked":
        """Begin with k captions of each of B images."""
        parts = [slice(n, None, self.processes) for n in range(self.processes)]
        under_way = {
            name: [self._submit(name, image_ids[p], captions[p]) for p in parts]
            for name in self.apart
        }
        here = {name: reward for name, reward in self.rewards.items() if name not in self.apart}
        return Asked(
            len(image_ids),
            under_way,
            {
                name: lambda reward=reward: reward(image_ids, captions)
                for name, reward in here.items()
            },
        )

    def _submit(self, name: str, image_ids: Sequence[ImageId], captions: Captions) -> Future:
        try:
            return self.pool.submit(_of_batch, name, image_ids, captions)
        except BrokenProcessPool:
            raise _died() from None

    def close(self) -> None:
        if self.pool:
            self.pool.shutdown(cancel_futures=True)


class Asked(NamedTuple):
    """What `Rewards` were asked for. under_way: of each name the parts that processes compute, to
    which the images were dealt like cards; here: what computes the others."""

    images: int
    under_way: dict[str, list[Future]]
    here: dict[str, Callable[[], np.ndarray]]

    def found(self) -> dict[str, np.ndarray]:
        """float64 (B, k) of each reward, once all are there. Raises UserError."""
        values = {name: compute() for name, compute in self.here.items()}
        for name, parts in self.under_way.items():
            rows = [None] * self.images
            for number, part in enumerate(parts):
                rows[number :: len(parts)] = _result(part)
            values[name] = np.array(rows)
        return values


def _begin(rewards: Mapping[str, Reward]) -> None:
    global _rewards
    _rewards = rewards
    signals.leave_to_parent()


def _of_batch(name: str, image_ids: Sequence[ImageId], captions: Captions) -> list[list[float]]:
    return _rewards[name](image_ids, captions).tolist()


def _result(waiting: Future):
    try:
        return waiting.result()
    except BrokenProcessPool:
        raise _died() from None


def _died() -> UserError:
    return UserError(
        "a process that computes rewards has died, perhaps for want of memory; lower num_workers, "
        "of which there are as many"
    )
