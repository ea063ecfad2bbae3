"""Handles stop requests by SIGTERM, SIGUSR1 or Ctrl-C.

A signal only sets a flag. Programs check the flag with `stop_requested`, save, and stop.
"""

import atexit
import contextlib
import multiprocessing.util  # imported before `end_workers` is registered, which then runs first
import os
import signal
from collections.abc import Iterator
from typing import Optional

# SIGTERM and SIGUSR1 announce pre-emption (Slurm, Kubernetes, torchrun). SIGINT is Ctrl-C.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
# Environment variable with the process id of the launcher, which is the parent of this process.
LAUNCHER_VARIABLE = "CAPTIONING_LAUNCHER"


class Stopped(BaseException):
    """The program stops early on request. It has saved what it needs to continue.

    Not an Exception, so that code which handles all errors lets it pass.
    """


_request: Optional[str] = None  # what asked to stop: "Ctrl-C" or the name of a signal
_launcher_pid: Optional[int] = None  # the process whose death counts as a stop request


@contextlib.contextmanager
def watch() -> Iterator[None]:
    """Within the block, signals only set the flag. Ctrl-C twice raises KeyboardInterrupt.

    If a launcher (torchrun, `run_jobs`) has started this process, the launcher's death also counts
    as a stop request. A nested block keeps earlier requests.
    """
    global _request, _launcher_pid
    if signal.getsignal(SIGNALS[0]) is not _set_flag:  # else the block is nested
        _request, _launcher_pid = None, _find_launcher()
    handlers = {number: signal.signal(number, _set_flag) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _find_launcher() -> Optional[int]:
    # The variable comes first: if the launcher has already died, getppid returns another process.
    if LAUNCHER_VARIABLE in os.environ:
        return int(os.environ[LAUNCHER_VARIABLE])
    return os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None


def _set_flag(number: int, frame) -> None:
    global _request
    repeated = _request == "Ctrl-C"
    _request = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    if repeated and number == signal.SIGINT:
        raise KeyboardInterrupt


def stop_requested() -> Optional[str]:
    """Return what has asked to stop since `watch` began, such as "SIGTERM"; None if nothing has."""
    if _launcher_pid is not None and os.getppid() != _launcher_pid:
        return _request or "the launcher's death"
    return _request


def raise_if_requested() -> None:
    """Raise Stopped if this process was asked to stop. Ranks together use `distributed`'s."""
    if stop_requested():
        raise Stopped


def ignore(worker: int = 0) -> None:
    """Called in a worker of a DataLoader: ignore the signals, which the parent handles.

    worker: not used; DataLoader passes the worker's number.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@atexit.register
def end_workers() -> None:
    """Kill remaining worker processes when this process exits.

    multiprocessing would send SIGTERM, which the workers ignore, and then wait for them.
    """
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
