"""How a program ends: done, stopped by a signal, with one error line, or with a bug's traceback.

With several processes, the one that caused an error prints it first, and one that hangs is ended.
"""

import atexit
import contextlib
import faulthandler
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

from captioning.runtime import distributed, signals
from captioning.runtime.errors import UserError, visible
from captioning.runtime.progress import log_line

FAILED, INTERRUPTED = 2, 130  # exit codes: after one line for the user, and after Ctrl-C
HEAD_START_S = 10


def exit_code(program: Callable[[], Optional[int]], interrupted: Optional[str] = None) -> int:
    """Run a program and return its exit code: FAILED after the one line of a UserError.

    program: returns an exit code, or None for 0.
    interrupted: by default signals ask the program to save and stop, which is success (see
    `signals`). With a text they are not watched: Ctrl-C prints it and returns INTERRUPTED.
    """
    gc.enable()  # `tune_process` has disabled it for the imports
    with signals.watch() if interrupted is None else contextlib.nullcontext():
        try:
            return program() or 0
        except (signals.Stopped, KeyboardInterrupt) as stop:
            if interrupted:
                print(interrupted, file=sys.stderr)
            if isinstance(stop, KeyboardInterrupt):
                _leave_the_others(INTERRUPTED)
            if interrupted is not None or isinstance(stop, KeyboardInterrupt):
                return INTERRUPTED
            reason = signals.stop_requested() or "another process"
            log_line(f"stopped by {reason}; the same command goes on from here")
            return 0
        except UserError as error:
            line = visible(f"error: {error}")
            if not distributed.is_main():  # rank 0 may have the same error, and prints it alone
                _wait_for_the_cause()
                line = f"[rank {distributed.rank()}] {line}"
            print(line, file=sys.stderr, flush=True)
            _leave_the_others(FAILED)
            return FAILED
        except Exception:
            if distributed.announced() > 1:
                _end_after_a_bug()
            raise
        finally:
            distributed.stop()


def show_warnings() -> None:
    """Print logged warnings, one line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def leave(code: int) -> NoReturn:
    """End the process at once, after the functions registered with atexit.

    Freeing libraries and weights one by one takes a second; the system does it faster.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _leave_the_others(code: int) -> None:
    """End the process if it is in a group: the other processes may wait for it in a collective.

    `distributed.stop` would wait for them with NCCL; all processes reach only success and Stopped.
    """
    if dist.is_initialized():
        for child in multiprocessing.active_children():  # `leave` would wait for their end
            child.kill()
        leave(code)


def _wait_for_the_cause() -> None:
    """Before an error is printed, let the process that caused it print its own.

    When one process fails, a collective raises an uninformative error in the others. They wait here
    until the launcher ends them, which it does after the first has failed.
    """
    until = time.monotonic() + HEAD_START_S
    while distributed.announced() > 1 and time.monotonic() < until:
        if signals.stop_requested():  # by the launcher
            sys.stderr.flush()
            os._exit(1)
        time.sleep(0.1)


def _end_after_a_bug() -> NoReturn:
    """In an except block of one of several processes: print the traceback, and end the process.

    At once, since the traceback keeps the distributed model alive; see `distributed.stop`.
    """
    silent = ", ".join(map(str, _silent_ranks()))
    if silent:
        line = f"error: [rank {distributed.rank()}] waited in vain for rank {silent}"
        print(line, file=sys.stderr)
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)


def _silent_ranks() -> list[int]:
    """After `_wait_for_the_cause`, the ranks that have not failed too: they are gone or hang."""
    if not dist.is_initialized():
        _wait_for_the_cause()
        return []
    try:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"failed/{distributed.rank()}", "")
        _wait_for_the_cause()
        ranks = range(distributed.world_size())
        return [other for other in ranks if not store.check([f"failed/{other}"])]
    except RuntimeError:  # the launcher, which holds the store, is gone
        return []


class Watchdog:
    """Ends this process where it calls no `beat` for `seconds`; only with several processes.

    A process that waits for the others is not at fault: it fails after the one that hangs has been
    named and ended. A process whose GPU hangs waits for the GPU, which looks the same: NCCL's
    timeout ends all processes then (`limit_waits`).
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._last: Optional[float] = None
        self._ended = threading.Event()
        if distributed.world_size() > 1:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self) -> None:
        """Report that work goes on."""
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
                faulthandler.dump_traceback()
                print(
                    f"error: [rank {distributed.rank()}] hangs: it has done no step for more than "
                    f"{self.seconds:g} s (rank_timeout); the stacks above show where",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)
