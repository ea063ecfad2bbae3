"""Batches calls that several threads make within a few milliseconds."""

import threading
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Callable

WINDOW_S = 0.005  # how long a call waits for other calls if no batch is running


class Disconnected(Exception):
    """The caller no longer waits for the answer."""


@dataclass(eq=False)
class _Call:
    key: Hashable
    item: Any
    disconnected: threading.Event
    since: float = field(default_factory=time.monotonic)
    answer: Future = field(default_factory=Future)


class DynamicBatcher:
    """Runs one batch at a time: the thread whose turn it is answers waiting calls with its key.

    compute: returns the answers to items with the same key, in order. max_batch: most items in one.
    on_batch: called after each batch with the number of items and the seconds.
    """

    def __init__(self, compute: Callable[[Sequence[Any]], Sequence[Any]], max_batch: int):
        self.compute, self.max_batch = compute, max_batch
        self.on_batch: Callable[[int, float], None] = lambda items, seconds: None
        self._turn = threading.Lock()
        self._changed = threading.Condition()  # protects the waiting calls
        self._waiting: list[_Call] = []

    def submit(self, key: Hashable, item: Any, disconnected: threading.Event) -> Any:
        """Return the item's answer. With the key None, the item is a batch of its own.

        disconnected: set when the caller stops waiting; then the item is left out, and Disconnected
        is raised. Raises the error that `compute` raises for a batch of only this item.
        """
        call = _Call(object() if key is None else key, item, disconnected)
        with self._changed:
            self._waiting.append(call)
            self._changed.notify_all()
        with self._turn:
            if not call.answer.done():
                self._answer(self._batch_of(call, 0 if key is None else WINDOW_S))
        return call.answer.result()

    def _batch_of(self, first: _Call, window: float) -> list[_Call]:
        """After the window, remove the call and other calls with its key from the waiting calls."""

        def alike() -> list[_Call]:
            return [c for c in self._waiting if c.key == first.key and not c.disconnected.is_set()]

        with self._changed:
            self._changed.wait_for(
                lambda: len(alike()) >= self.max_batch, first.since + window - time.monotonic()
            )
            others = [call for call in alike() if call is not first]
            batch = [first, *others[: self.max_batch - 1]]
            self._waiting = [call for call in self._waiting if call not in batch]
        return batch

    def _answer(self, batch: list[_Call]) -> None:
        """Answer each call. An error caused by one item is raised only for its caller."""
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
        if answers is None:  # outside of the except block, so that the traceback's memory is free
            for call in calls:
                self._answer([call])
            return
        for call, answer in zip(calls, answers):
            call.answer.set_result(answer)
        self.on_batch(len(calls), time.monotonic() - started)
