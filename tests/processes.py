"""Processes that tests can kill: ranks of a program, and the launcher with its ranks.

Ranks are forked from a server, which has imported torch and the project once. A process therefore
starts without imports, and has none of the threads of the process that runs the tests.
"""

import gc
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any, Callable, Optional
from unittest import mock

import cloudpickle
from tqdm import tqdm

REPOSITORY = Path(__file__).resolve().parent.parent
# What the server imports: the programs, and what they import late.
PRELOADED = (
    *("tests.runs", "captioning.caption", "captioning.evaluate", "captioning.data.augmentation"),
    *("captioning.bulk.model", "BLIP.blip", "torch.utils.tensorboard", "transformers", "pytest"),
    *("torch.distributed.fsdp", "torch.distributed.checkpoint"),
)
_server = forkserver.ForkServer()  # not the one of the project's programs, which tests restart
_server.set_forkserver_preload([*PRELOADED])
_started: list["Processes"] = []


class Processes:
    """A function, such as a program's `main`, in one or more processes, each of which is a rank."""

    def __init__(
        self,
        function: Callable[[Any], Optional[int]],
        arguments: Any,
        output: Path,
        processes: int = 1,
        hook: Optional[Callable[[int], None]] = None,
    ):
        """Start the processes, which call `function(arguments)` and exit with what it returns.

        output: the file for what they print. hook: called with the rank before the function.
        Function, arguments and hook are copied by cloudpickle, which takes closures, too. The
        processes have this one's folder and environment, and none of its patches.
        """
        self.output = output
        self.output.unlink(missing_ok=True)
        call = cloudpickle.dumps((function, arguments, hook))
        start = multiprocessing.get_context("forkserver").Process
        self.ranks = [
            start(target=_be_rank, args=(call, rank, variables, os.getcwd(), str(output)))
            for rank, variables in enumerate(_groups(processes))
        ]
        _started.append(self)
        _start_server()
        connect = _server.connect_to_new_process
        with mock.patch.object(forkserver, "connect_to_new_process", connect):
            for process in self.ranks:
                process.start()

    def send(self, number: int, ranks: Optional[Sequence[int]] = None) -> None:
        """Send a signal to those ranks, or all, that have not ended."""
        for process in self.ranks if ranks is None else [self.ranks[rank] for rank in ranks]:
            if process.is_alive():
                os.kill(process.pid, number)

    def ended(self) -> bool:
        """Return whether all processes have ended."""
        return not any(process.is_alive() for process in self.ranks)

    def wait(self, seconds: float = 120) -> list[int]:
        """Return the exit codes, -9 of a killed process. After so long, the others are killed."""
        deadline = time.monotonic() + seconds
        while not self.ended():
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
            alive = [process.sentinel for process in self.ranks if process.is_alive()]
            connection.wait(alive, timeout=1)
        return [process.exitcode for process in self.ranks]

    def said(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""


class Launched(Processes):
    """captioning.launch, which starts the ranks of a program."""

    def __init__(self, processes: int, *arguments: object, output: Path):
        """arguments: torchrun's, then a path or -m and a module, then the program's."""
        command = [sys.executable, "-m", "captioning.launch", "--standalone"]
        command += ["--nproc_per_node", str(processes), *map(str, arguments)]
        super().__init__(_launch, command, output)


def kill_started() -> None:
    """Kill the processes of a test that has failed before it waited for them."""
    while _started:
        processes = _started.pop()
        processes.ranks = [process for process in processes.ranks if process.pid is not None]
        processes.send(signal.SIGKILL)
        processes.wait()


def _start_server() -> None:
    """Start the server, unless it runs. It finds what it imports from the repository's folder."""
    folder = os.getcwd()
    os.chdir(REPOSITORY)
    try:
        _server.ensure_running()
    finally:
        os.chdir(folder)


def _groups(processes: int) -> list[dict[str, str]]:
    """Return each rank's variables; torchrun's are among them if there are several."""
    if processes == 1:
        return [dict(os.environ)]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    ranks = map(str, range(processes))
    return [{**os.environ, **group, "RANK": rank, "LOCAL_RANK": rank} for rank in ranks]


def _be_rank(call, rank, variables, folder, output):
    multiprocessing.set_start_method(None, force=True)  # as in a process that was not forked
    gc.freeze()  # what the server has imported: programs collect garbage, which would copy it
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
        stream.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    tqdm.set_lock(threading.RLock())  # the server's may be held by a process that was killed
    function, arguments, hook = cloudpickle.loads(call)
    if hook is not None:
        hook(rank)
    sys.exit(function(arguments))


def _launch(command: list[str]) -> None:
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    os.execv(command[0], command)
