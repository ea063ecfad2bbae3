"""Batches calls that several threads make within a few milliseconds."""

import threading
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Callable

WINDOW_S = 0.005  # how long a call waits for other calls if no batch is running


class Gone(Exception):
    """The caller no longer waits for the answer."""


@dataclass(eq=False)
class _Call:
    key: Hashable
    item: Any
    gone: threading.Event
    since: float = field(default_factory=time.monotonic)
    answer: Future = field(default_factory=Future)


class DynamicBatcher:
    """Runs one batch at a time: the thread whose turn it is answers waiting calls with its key.

    make: returns the answers to items with the same key, in order. most: maximum items in a batch.
    on_batch: called after each batch with the number of items and the seconds.
    """

    def __init__(self, make: Callable[[Sequence[Any]], Sequence[Any]], most: int):
        self.make, self.most = make, most
        self.on_batch: Callable[[int, float], None] = lambda items, seconds: None
        self._turn = threading.Lock()
        self._changed = threading.Condition()  # protects the waiting calls
        self._waiting: list[_Call] = []

    def ask(self, key: Hashable, item: Any, gone: threading.Event) -> Any:
        """Return the item's answer. With the key None, the item is a batch of its own.

        gone: set when the caller stops waiting; then the item is left out, and Gone is raised.
        Raises the error that `make` raises for a batch of only this item.
        """
        call = _Call(object() if key is None else key, item, gone)
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
            return [c for c in self._waiting if c.key == first.key and not c.gone.is_set()]

        with self._changed:
            self._changed.wait_for(
                lambda: len(alike()) >= self.most, first.since + window - time.monotonic()
            )
            others = [call for call in alike() if call is not first]
            batch = [first, *others[: self.most - 1]]
            self._waiting = [call for call in self._waiting if call not in batch]
        return batch

    def _answer(self, batch: list[_Call]) -> None:
        """Answer each call. An error caused by one item is raised only for its caller."""
        started, calls = time.monotonic(), []
        for call in batch:
            if call.gone.is_set():
                call.answer.set_exception(Gone())
            else:
                calls.append(call)
        if not calls:
            return
        try:
            answers = self.make([call.item for call in calls])
        except Exception as error:
            if len(calls) == 1:
                calls[0].answer.set_exception(error)
                return
            answers = None
        if answers is None:  # outside of the except block, so that the traceback's memory is free
            for call in calls:
                self._answer([call])
            return
        for call, answer in zip(calls, answers):
            call.answer.set_result(answer)
        self.on_batch(len(calls), time.monotonic() - started)
