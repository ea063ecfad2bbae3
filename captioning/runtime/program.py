"""How a program of one process or several ends: well, asked to stop, with one line, in a bug.

Of several processes the one that caused an error is heard first, and one that hangs is ended.
"""

import atexit
import gc
import logging
import multiprocessing
import os
import sys
import threading
import time
import traceback
from typing import Callable, NoReturn, Optional

import torch.distributed as dist

from captioning import COLLECTED
from captioning.runtime import distributed, signals
from captioning.runtime.errors import UserError, visible
from captioning.runtime.progress import say

FAILED, INTERRUPTED = 2, 130  # exit codes: after one line for the user, and after Ctrl-C
HEAD_START_S = 10


def exit_code(program: Callable[[], Optional[int]]) -> int:
    """As `exit_code_unwatched`, and 0 when a signal asked it to end early; see `stopping`.

    program: returns an exit code, or None for 0.
    """
    with signals.watch():
        return exit_code_unwatched(program)


def exit_code_unwatched(program: Callable, interrupted: Optional[str] = None) -> int:
    """Run it, signals left as they are; its exit code, or FAILED after the line of a UserError.

    interrupted: where it is given, Ctrl-C ends in this line (none for "") and INTERRUPTED.
    """
    gc.set_threshold(*COLLECTED)  # all is imported
    try:
        return program() or 0
    except (signals.Stopped, KeyboardInterrupt) as stop:
        if interrupted:
            print(interrupted, file=sys.stderr)
        if isinstance(stop, KeyboardInterrupt):
            _leave_the_others(INTERRUPTED)
        if interrupted is not None:
            return INTERRUPTED
        if isinstance(stop, KeyboardInterrupt):
            raise
        reason = signals.stop_requested() or "another process"
        say(f"stopped by {reason}; the same command goes on from here")
    except UserError as error:
        line = visible(f"error: {error}")
        if not distributed.is_main():  # rank 0 may have the same one, and prints it alone
            _wait_for_the_cause()
            line = f"[rank {distributed.rank()}] {line}"
        print(line, file=sys.stderr, flush=True)
        _leave_the_others(FAILED)
        return FAILED
    except Exception:
        _end_after_a_bug()
        raise
    finally:
        distributed.stop()
    return 0


def show_warnings() -> None:
    """Let what is logged be seen, a line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def leave(code: int) -> NoReturn:
    """End the process, all that was registered to be done at its end done.

    What it holds is left to the system: to take libraries and weights apart takes a second.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _leave_the_others(code: int) -> None:
    """End the process at once if it is in a group, whose others may wait for it in a collective.

    NCCL's `distributed.stop` would wait for them; only success and Stopped are reached by all.
    """
    if dist.is_initialized():
        for child in multiprocessing.active_children():  # whose end `leave` would wait for
            child.kill()
        leave(code)


def _wait_for_the_cause() -> None:
    """Before an error is shown: the process whose error may have caused it goes first.

    A process that loses another in mid-collective fails with a traceback that says nothing; the
    launcher ends it in this time, after the other has shown the cause.
    """
    until = time.monotonic() + HEAD_START_S
    while distributed.announced() > 1 and time.monotonic() < until:
        if signals.stop_requested():  # by the launcher, which has seen the other end
            sys.stderr.flush()
            os._exit(1)
        time.sleep(0.1)


def _end_after_a_bug() -> None:
    """In a handler, in one of several processes: show the traceback and end.

    At once, since the traceback keeps the distributed model alive; see `distributed.stop`.
    """
    if distributed.announced() > 1:
        silent = ", ".join(map(str, _silent_ranks()))
        if silent:
            line = f"error: [rank {distributed.rank()}] waited in vain for rank {silent}"
            print(line, file=sys.stderr)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _silent_ranks() -> list[int]:
    """After `_wait_for_the_cause`, those that have not failed as well: they are gone or hang."""
    if not dist.is_initialized():
        _wait_for_the_cause()
        return []
    try:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"failed/{distributed.rank()}", "")
        _wait_for_the_cause()
        ranks = range(distributed.world_size())
        return [other for other in ranks if not store.check([f"failed/{other}"])]
    except RuntimeError:  # the launcher, which keeps the store, is gone
        return []


class Watchdog:
    """Expects a `beat` every `seconds`, in training and generation on several processes.

    A process that waits for the others is not at fault, and left alone: the one that hangs is to
    be seen, and ended, first. Then those that wait fail as well. One whose GPU hangs waits for it
    as for the others: it is not accused, and all are ended by NCCL's timeout (`limit_waits`).
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
            if late and not distributed.waiting:
                lines = traceback.format_stack(sys._current_frames().get(self._watched))
                print(
                    f"{''.join(lines)}error: [rank {distributed.rank()}] hangs: it has done no "
                    f"step for more than {self.seconds:g} s (rank_timeout), and is where the lines "
                    "above say",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)
