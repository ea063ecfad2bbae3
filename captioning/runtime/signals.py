"""Being asked to stop, by SIGTERM, SIGUSR1 or Ctrl-C: a flag, at which work ends in good order."""

import atexit
import contextlib
import ctypes
import multiprocessing.util  # whose own exit comes after ours, being registered before
import os
import signal
import sys
from collections.abc import Iterator
from typing import Optional

# Of pre-emption (SIGTERM, SIGUSR1: Slurm, Kubernetes, torchrun) and of a person at the keyboard.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
# In the environment of a process that works for another one, which is its parent: its id.
PARENT = "CAPTIONING_PARENT"
PR_SET_PDEATHSIG = 1


class Stopped(Exception):
    """Work has ended early because it was asked to. It has saved what is needed to go on."""


_asked: Optional[str] = None
_launcher: Optional[int] = None  # the process that must live for this one to go on
_watches = 0  # each within the one before


@contextlib.contextmanager
def watch() -> Iterator[None]:
    """Within the block the signals set the flag, and nothing else; Ctrl-C twice ends at once.

    A process that torchrun or a sweep started is asked to stop, too, by its parent's death. Within
    another watch it forgets no request that came before.
    """
    global _asked, _launcher, _watches
    if _watches == 0:
        _asked, _launcher = None, _parent()
    _watches += 1
    before = {number: signal.signal(number, _ask) for number in SIGNALS}
    try:
        yield
    finally:
        _watches -= 1
        for number, handler in before.items():
            signal.signal(number, handler)


def _parent() -> Optional[int]:
    if PARENT in os.environ:  # it may have died before this process could ask
        return int(os.environ[PARENT])
    return os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None


def _ask(number: int, frame) -> None:
    global _asked
    again = _asked == "Ctrl-C"
    _asked = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    if again and number == signal.SIGINT:
        raise KeyboardInterrupt


def stop_requested() -> Optional[str]:
    """By what this process was asked to stop since the outermost `watch` began, or None."""
    if _launcher is not None and os.getppid() != _launcher:
        launcher_died()
    return _asked


def launcher_died() -> None:
    """As a signal would, let this process be asked to stop, if it was not before."""
    global _asked
    _asked = _asked or "the launcher's death"


@contextlib.contextmanager
def ended_with_launcher() -> Iterator[None]:
    """Within the block, in which no flag is looked at, the launcher's death is this process's.

    Raises Stopped where the launcher is dead already. A program need not `watch` for it.
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
    """In a process that computes for another one: `ignore`, and end when that one does."""
    ignore()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def ignore(worker: int = 0) -> None:
    """In a process that loads data: leave the signals to the one that it works for."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@atexit.register
def end_workers() -> None:
    """What has been left of them. multiprocessing would send SIGTERM and wait, for ever."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
