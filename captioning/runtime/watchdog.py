"""Ends a process of several that hangs, with the line on the screen at which it does."""

import os
import sys
import threading
import time
import traceback
from typing import Optional

from captioning.runtime import distributed


class Watchdog:
    """Expects a `beat` every `seconds`, in training and generation on several processes.

    A process that waits for the others is not at fault, and left alone: the one that hangs is to
    be seen, and ended, first. Then those that wait fail as well.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._last: Optional[float] = None
        self._watched = threading.get_ident()
        self._ended = threading.Event()
        if distributed.world_size() > 1:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self) -> None:
        """Say that the work goes on."""
        self._last = time.monotonic()

    def pause(self) -> None:
        """Expect no beat until the next one."""
        self._last = None

    def end(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self.seconds / 10)):
            last = self._last
            late = last is not None and time.monotonic() - last > self.seconds
            if late and not distributed.is_waiting():
                self._report()
                os._exit(1)

    def _report(self) -> None:
        frame = sys._current_frames().get(self._watched)
        lines = "".join(traceback.format_stack(frame))
        print(
            f"{lines}error: [rank {distributed.rank()}] hangs: it has done no step for more than "
            f"{self.seconds:g} s (rank_timeout), and is where the lines above say",
            file=sys.stderr,
            flush=True,
        )
