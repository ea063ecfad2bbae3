"""Combines the calls of several threads into batches, which are computed together."""

import threading
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Callable

# How many seconds a call waits for calls with the same key, counted from its submission.
WINDOW_S = 0.005


class Disconnected(Exception):
    """The caller no longer waits for the answer."""


@dataclass(eq=False)
class _Call:
    key: Hashable
    item: Any
    disconnected: threading.Event
    submitted_at: float = field(default_factory=time.monotonic)
    answer: Future = field(default_factory=Future)


class DynamicBatcher:
    """Runs one batch at a time, in the thread of one of its callers.

    The items of a batch have the same key. compute: takes the items of a batch and returns their
    answers in the same order. max_batch: maximum number of items in a batch. The attribute
    `on_batch` may be set to a function that is called after each batch, with the number of items
    and the seconds.
    """

    def __init__(self, compute: Callable[[Sequence[Any]], Sequence[Any]], max_batch: int):
        self.compute, self.max_batch = compute, max_batch
        self.on_batch = lambda items, seconds: None
        self._batch_lock = threading.Lock()
        self._condition = threading.Condition()  # protects `_waiting`; notified of new calls
        self._waiting: list[_Call] = []

    def submit(self, key: Hashable, item: Any, disconnected: threading.Event) -> Any:
        """Wait for the item's answer and return it. With the key None, the item is its own batch.

        disconnected: set when the caller disconnects. If it is set before the item's batch starts,
        the item is left out, and Disconnected is raised. If `compute` raises an error for a batch
        of only this item, the error is raised here.
        """
        call = _Call(object() if key is None else key, item, disconnected)
        with self._condition:
            self._waiting.append(call)
            self._condition.notify_all()
        with self._batch_lock:
            if not call.answer.done():
                self._answer(self._take_batch(call, 0 if key is None else WINDOW_S))
        return call.answer.result()

    def _take_batch(self, first: _Call, window: float) -> list[_Call]:
        """Wait until the batch is full or the window is over, and return the batch.

        The batch is `first` and the oldest other calls with the same key. They are removed from
        `_waiting`. window: seconds to wait, counted from the submission of `first`.
        """

        def matching_calls() -> list[_Call]:
            return [c for c in self._waiting if c.key == first.key and not c.disconnected.is_set()]

        with self._condition:
            self._condition.wait_for(
                lambda: len(matching_calls()) >= self.max_batch,
                first.submitted_at + window - time.monotonic(),
            )
            others = [call for call in matching_calls() if call is not first]
            batch = [first, *others[: self.max_batch - 1]]
            self._waiting = [call for call in self._waiting if call not in batch]
        return batch

    def _answer(self, batch: list[_Call]) -> None:
        """Compute a batch and set the answer of each call.

        If a batch of several items fails, each item is computed again as its own batch, so that
        only the calls that are at fault get an error.
        """
        started, answers = time.monotonic(), None
        for call in batch:
            if call.disconnected.is_set():
                call.answer.set_exception(Disconnected())
        calls = [call for call in batch if not call.answer.done()]
        if not calls:
            return
        try:
            answers = self.compute([call.item for call in calls])
        except Exception as error:
            if len(calls) == 1:
                calls[0].answer.set_exception(error)
                return
        if answers is None:  # not in the except block, where the traceback keeps tensors in memory
            for call in calls:
                self._answer([call])
            return
        for call, answer in zip(calls, answers):
            call.answer.set_result(answer)
        self.on_batch(len(calls), time.monotonic() - started)
