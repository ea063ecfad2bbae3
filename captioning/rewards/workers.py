"""Computes rewards in worker processes, while the device continues with the training step."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Callable, Optional

import numpy as np

from captioning.data.annotations import ImageId
from captioning.rewards.interface import Reward, Sampled
from captioning.runtime import signals
from captioning.runtime.errors import UserError

Captions = Sequence[Sequence[Sampled]]

_rewards: Mapping[str, Reward] = {}  # set only in worker processes


class Rewards:
    """Computes the rewards of a run. rewards: {name: reward}.

    Rewards that are `on_device` are computed in the training process, other rewards in workers.
    processes: the number of workers; with 0, all rewards are computed in the training process.
    `close` ends the workers.
    """

    def __init__(self, rewards: Mapping[str, Reward], processes: int = 0):
        self.rewards, self.processes = rewards, processes
        without_model = {name: reward for name, reward in rewards.items() if not reward.on_device}
        self.in_workers = list(without_model) if processes else []
        self.pool: Optional[ProcessPoolExecutor] = None
        if self.in_workers:
            arguments = (without_model,)
            self.pool = ProcessPoolExecutor(processes, initializer=_init_worker, initargs=arguments)
            # The first calls start the workers. Start them before the captioner is built, because
            # they are forks of this process.
            futures = [self._submit(self.in_workers[0], [], []) for _ in range(processes)]
            with _worker_death_as_user_error():
                for future in futures:
                    future.result()

    def submit(
        self, image_ids: Sequence[ImageId], captions: Captions
    ) -> Callable[[], dict[str, np.ndarray]]:
        """Start computing the rewards of k captions for each of B images.

        Returns a function that computes the rewards that are not computed in workers, waits for the
        workers and returns {name: float64 (B, k)}. `submit` and the returned function raise
        UserError if a worker has died.
        """
        size = math.ceil(len(image_ids) / max(self.processes, 1))  # images per worker
        slices = [slice(first, first + size) for first in range(0, len(image_ids), size)]
        futures_by_name = {
            name: [self._submit(name, image_ids[rows], captions[rows]) for rows in slices]
            for name in self.in_workers
        }

        def wait():
            values = {
                name: reward(image_ids, captions)
                for name, reward in self.rewards.items()
                if name not in futures_by_name
            }
            for name, futures in futures_by_name.items():
                with _worker_death_as_user_error():
                    values[name] = np.concatenate([future.result() for future in futures])
            return values

        return wait

    def _submit(self, name: str, image_ids: Sequence[ImageId], captions: Captions) -> Future:
        with _worker_death_as_user_error():
            return self.pool.submit(_compute, name, image_ids, captions)

    def close(self) -> None:
        if self.pool:
            self.pool.shutdown(cancel_futures=True)


def _init_worker(rewards: Mapping[str, Reward]):
    global _rewards
    _rewards = rewards
    signals.leave_to_parent()


def _compute(name: str, image_ids: Sequence[ImageId], captions: Captions) -> np.ndarray:
    return _rewards[name](image_ids, captions)


@contextmanager
def _worker_death_as_user_error():
    """Raise UserError if a worker dies while the block uses the pool."""
    try:
        yield
    except BrokenProcessPool:
        raise UserError(
            "a process that computes rewards has died, perhaps because memory ran out; lower "
            "num_workers, the number of these processes"
        ) from None
