"""Calls that come within a few milliseconds, from as many threads, answered together."""

import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

WINDOW_S = 0.005  # that a call waits for others at most, if nothing else is under way


class Gone(Exception):
    """Whoever asked does not wait for the answer any more."""


@dataclass(eq=False)
class _Call:
    key: Hashable
    item: Any
    gone: threading.Event
    since: float = field(default_factory=time.monotonic)
    done: bool = False
    answer: Any = None
    error: Optional[Exception] = None


class DynamicBatcher:
    """One turn at a time: who has it answers all that wait with a call of the same key.

    make: the answers to items of one key, in their order. most: items at once. told: of every
    batch that is made, how many items it had and how many seconds it took.
    """

    def __init__(self, make: Callable[[Sequence[Any]], Sequence[Any]], most: int):
        self.make, self.most = make, most
        self.told: Callable[[int, float], None] = lambda items, seconds: None
        self._turn = threading.Lock()
        self._changed = threading.Condition()  # of the waiting
        self._waiting: list[_Call] = []

    def ask(self, key: Hashable, item: Any, gone: threading.Event) -> Any:
        """The item's answer; with the key None it is answered alone.

        gone: set where nobody waits any more; the call then costs nothing, and raises Gone. Raises
        what making raised for this item alone.
        """
        call = _Call(object() if key is None else key, item, gone)
        with self._changed:
            self._waiting.append(call)
            self._changed.notify_all()
        with self._turn:
            if not call.done:
                self._answer(self._gathered(call, 0 if key is None else WINDOW_S))
        if call.error is not None:
            raise call.error
        return call.answer

    def _gathered(self, first: _Call, window: float) -> list[_Call]:
        """The call, and those that wait or come in time; none of them waits then."""

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
        """Answer each call, with an error where it is its own."""
        started, wanted = time.monotonic(), [call for call in batch if not call.gone.is_set()]
        answers = None
        try:
            answers = self.make([call.item for call in wanted]) if wanted else []
        except Exception as error:
            if len(wanted) == 1:
                wanted[0].error = error
        if answers is None and len(wanted) > 1:
            # One is to blame, or they are too many for the memory, which the error held till here.
            for call in batch:
                self._answer([call])
            return
        if wanted and answers is not None:
            for call, answer in zip(wanted, answers):
                call.answer = answer
            self.told(len(wanted), time.monotonic() - started)
        for call in batch:
            call.done = True
            if call not in wanted:
                call.error = Gone()
