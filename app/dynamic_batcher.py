"""Computes calls of several threads together, as batches."""

import threading
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Callable

WINDOW_S = 0.005  # how long a call waits for calls with the same key if no batch is running


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
    """Runs one batch at a time, in a caller's thread. The items of a batch have the same key.

    compute: returns the answers to items with the same key, in order. max_batch: maximum number of
    items in a batch. on_batch: called after each batch with the number of items and the seconds.
    """

    def __init__(self, compute: Callable[[Sequence[Any]], Sequence[Any]], max_batch: int):
        self.compute, self.max_batch = compute, max_batch
        self.on_batch: Callable[[int, float], None] = lambda items, seconds: None
        self._batch_lock = threading.Lock()
        self._condition = threading.Condition()  # protects the waiting calls
        self._waiting: list[_Call] = []

    def submit(self, key: Hashable, item: Any, disconnected: threading.Event) -> Any:
        """Return the item's answer. With the key None, the item is a separate batch.

        disconnected: set when the caller disconnects; then the item is left out, and Disconnected
        is raised. Raises the error that `compute` raises for a batch of only this item.
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
        """Wait for the window or a full batch. Return the call and others with its key, in order.

        They are removed from `_waiting`.
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
        """Compute a batch and set each call's answer.

        After an error, compute each item as a batch of its own, so that only its call gets the
        error.
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
        if answers is None:  # not in the except block: there, the traceback keeps tensors in memory
            for call in calls:
                self._answer([call])
            return
        for call, answer in zip(calls, answers):
            call.answer.set_result(answer)
        self.on_batch(len(calls), time.monotonic() - started)
