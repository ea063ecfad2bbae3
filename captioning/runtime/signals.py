"""Requests to stop, by SIGTERM, SIGUSR1 or Ctrl-C: a flag that work checks, to save and end."""

import atexit
import contextlib
import ctypes
import multiprocessing.util  # registers its exit function first: it runs after ours
import os
import signal
import sys
from collections.abc import Iterator
from typing import Optional

# Pre-emption (SIGTERM, SIGUSR1: Slurm, Kubernetes, torchrun) and Ctrl-C.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
# The environment variable with the id of the parent process that this one works for.
PARENT = "CAPTIONING_PARENT"
PR_SET_PDEATHSIG = 1


class Stopped(Exception):
    """Work has ended early because it was asked to. It has saved what is needed to go on."""


_request: Optional[str] = None
_launcher: Optional[int] = None  # this process stops when that one dies
_watches = 0  # nested


@contextlib.contextmanager
def watch() -> Iterator[None]:
    """Within the block the signals only set the flag; Ctrl-C twice raises KeyboardInterrupt.

    In a process that torchrun or a sweep started, its parent's death sets the flag, too. A nested
    block keeps earlier requests.
    """
    global _request, _launcher, _watches
    if _watches == 0:
        _request, _launcher = None, _parent()
    _watches += 1
    before = {number: signal.signal(number, _set_flag) for number in SIGNALS}
    try:
        yield
    finally:
        _watches -= 1
        for number, handler in before.items():
            signal.signal(number, handler)


def _parent() -> Optional[int]:
    if PARENT in os.environ:  # it may have died before this process could call getppid
        return int(os.environ[PARENT])
    return os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None


def _set_flag(number: int, frame) -> None:
    global _request
    again = _request == "Ctrl-C"
    _request = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    if again and number == signal.SIGINT:
        raise KeyboardInterrupt


def stop_requested() -> Optional[str]:
    """What asked this process to stop since the outermost `watch` began, or None."""
    if _launcher is not None and os.getppid() != _launcher:
        launcher_died()
    return _request


def launcher_died() -> None:
    """Set the flag, as a signal would."""
    global _request
    _request = _request or "the launcher's death"


@contextlib.contextmanager
def ended_with_launcher() -> Iterator[None]:
    """Within the block, which does not check the flag, the launcher's death kills this process.

    Raises Stopped where the launcher is dead already. It needs no `watch`.
    """
    launcher = _parent() if _launcher is None else _launcher
    if launcher is None or sys.platform != "linux":
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if os.getppid() != launcher:
            raise Stopped
        yield
    finally:
        prctl(PR_SET_PDEATHSIG, 0)


def leave_to_parent() -> None:
    """In a worker process: ignore the signals, and die when the parent does."""
    ignore()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def ignore(worker: int = 0) -> None:
    """In a worker of a data loader: ignore the signals, which the parent handles."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@atexit.register
def end_workers() -> None:
    """Kill workers that are left: multiprocessing would send SIGTERM and wait forever."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
