"""How a program ends: success, stopped by a signal, one error line, or the traceback of a bug.

With several processes, the process that caused an error prints first.
"""

import atexit
import contextlib
import gc
import logging
import multiprocessing
import os
import sys
import time
import traceback
from typing import Callable, NoReturn, Optional

import torch.distributed as dist

from captioning.runtime import distributed, signals
from captioning.runtime.errors import UserError, visible
from captioning.runtime.progress import log_line

FAILED, INTERRUPTED = 2, 130  # exit codes: after a UserError, and after Ctrl-C
HEAD_START_S = 10  # for the process that caused an error, to print it first


def exit_code(program: Callable[[], Optional[int]], interrupted: Optional[str] = None) -> int:
    """Run a program and return its exit code: FAILED after a UserError, printed as one line.

    program: returns an exit code, or None for 0. interrupted: with None, signals ask the program to
    save and stop, which counts as success (see `signals`). With a text, signals are not watched:
    Ctrl-C prints the text and returns INTERRUPTED.
    """
    gc.enable()  # `tune_process` has disabled the collector for the imports
    with signals.watch() if interrupted is None else contextlib.nullcontext():
        try:
            return program() or 0
        except (signals.Stopped, KeyboardInterrupt) as stop:
            if interrupted:
                print(interrupted, file=sys.stderr)
            if isinstance(stop, KeyboardInterrupt):
                _exit_group(INTERRUPTED)
            if interrupted is not None or isinstance(stop, KeyboardInterrupt):
                return INTERRUPTED
            reason = signals.stop_requested() or "another process"
            log_line(f"stopped by {reason}; run the same command again to continue")
            return 0
        except UserError as error:
            line = visible(f"error: {error}")
            if not distributed.is_main():  # rank 0 may print the same error first
                _wait_for_first_error()
                line = f"[rank {distributed.rank()}] {line}"
            print(line, file=sys.stderr, flush=True)
            _exit_group(FAILED)
            return FAILED
        except Exception:
            if distributed.env_world_size() > 1:
                _exit_with_traceback()
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
    """Run the functions registered with atexit, then end the process at once.

    Python would take a second to free libraries and weights; the system does it faster.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_group(code: int) -> None:
    """End this process if it belongs to a process group, without `distributed.stop`.

    With NCCL, `distributed.stop` waits for the other processes, which may wait in a collective for
    this one. Only after success or Stopped do all processes call it.
    """
    if dist.is_initialized():
        for child in multiprocessing.active_children():  # `leave` would wait for the children
            child.kill()
        leave(code)


def _wait_for_first_error() -> None:
    """Let the process that caused an error print its error first.

    When a process fails, a collective raises an uninformative error in the other processes. They
    wait here until the launcher notices the failed process and ends them.
    """
    deadline = time.monotonic() + HEAD_START_S
    while distributed.env_world_size() > 1 and time.monotonic() < deadline:
        if signals.stop_requested():  # the launcher ends all processes
            sys.stderr.flush()
            os._exit(1)
        time.sleep(0.1)


def _exit_with_traceback() -> NoReturn:
    """Print the traceback and end the process. Called in an except block of a process group.

    Names the ranks that reported no error: they died or hang. Exits at once, because the traceback
    keeps the distributed model alive; see `distributed.stop`.
    """
    with contextlib.suppress(RuntimeError):  # the launcher, which holds the store, is gone
        store = dist.distributed_c10d._get_default_store() if dist.is_initialized() else None
        if store:
            store.set(f"failed/{distributed.rank()}", "")
        _wait_for_first_error()
        ranks = range(distributed.world_size()) if store else ()
        silent = [str(rank) for rank in ranks if not store.check([f"failed/{rank}"])]
        if silent:
            line = f"error: [rank {distributed.rank()}] waited in vain for rank {', '.join(silent)}"
            print(line, file=sys.stderr)
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
