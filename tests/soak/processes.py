"""Processes of a program that tests can kill: forked, so that they need no imports."""

import atexit
import functools
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional

from tqdm import tqdm

Program = Callable[[Sequence[str]], int]


class Processes:
    """A program's `main` in one or more forked processes, each of which is a rank."""

    def __init__(
        self,
        program: Program,
        arguments: Sequence[str],
        output: Path,
        processes: int = 1,
        hook: Optional[Callable[[int], None]] = None,
    ):
        """output: the file for what is printed; hook: called with the rank before the program."""
        self.output = output
        self.output.unlink(missing_ok=True)
        port = _free_port()
        self.ranks: list[int] = []
        self.codes: dict[int, int] = {}  # exit codes of ended processes
        for rank in range(processes):
            child = os.fork()
            if child == 0:
                _be_rank(rank, processes, port, self.output, program, arguments, hook)
            self.ranks.append(child)

    def send(self, number: int, ranks: Optional[list[int]] = None) -> None:
        """Send a signal to those ranks, or all, that have not ended."""
        for rank in range(len(self.ranks)) if ranks is None else ranks:
            if self.ranks[rank] not in self.codes:
                os.kill(self.ranks[rank], number)

    def ended(self) -> bool:
        """Whether all processes have ended."""
        for child in set(self.ranks) - set(self.codes):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                self.codes[child] = os.waitstatus_to_exitcode(status)
        return len(self.codes) == len(self.ranks)

    def wait(self, seconds: float = 120) -> list[int]:
        """Return the exit codes, -9 of a killed process. After so long, the others are killed."""
        until = time.monotonic() + seconds
        while not self.ended():
            if time.monotonic() > until:
                self.send(signal.SIGKILL)
            time.sleep(0.005)
        return [self.codes[child] for child in self.ranks]

    def said(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""


def _be_rank(rank, processes, port, output, program, arguments, hook):
    code = 70
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
        forget_parent()
        if processes > 1:
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
            )  # fmt: skip
        if hook is not None:
            hook(rank)
        code = program(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def forget_parent() -> None:
    """Take nothing from the process that forked this one: no handlers, locks or exit functions."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    tqdm.set_lock(threading.RLock())  # the shared one may be held by a process that was killed
    own: list[Callable] = []  # exit functions; clearing the real list can crash

    def register(function, *arguments, **keywords):
        own.append(functools.partial(function, *arguments, **keywords))
        return function

    atexit.register = register
    atexit._run_exitfuncs = lambda: [function() for function in reversed(own)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
