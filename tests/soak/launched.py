"""Programs that import nothing, as they are forked: captioning.launch's processes and others."""

import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Optional

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from tqdm import tqdm

from captioning import launch
from tests.soak.processes import Processes, exit_code


class Launched(Processes):
    """The launcher, a process of its own, and so many of a program as its children."""

    def __init__(self, processes: int, *arguments: object, output: Path):
        """arguments: torchrun's, then the program, a path or -m and a module, then what it gets."""
        command = ["--standalone", "--nproc_per_node", str(processes), *map(str, arguments)]
        super().__init__(_launch, command, output)

    def children(self) -> list[int]:
        """The processes that the launcher has started."""
        (launcher,) = self.ranks
        return [
            int(n) for n in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        ]


def _launch(arguments: Sequence[str]) -> int:
    SubprocessHandler._popen = lambda self, command, environment: Forked(command, environment)
    return launch.main(arguments)


class Forked:
    """What is asked of subprocess.Popen, of a child that begins with its parent's imports."""

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str],
        stdout: Optional[BinaryIO] = None,
        **_: object,
    ):
        """stdout: has what is said, too. Other options are as here: a session of its own."""
        self.returncode: Optional[int] = None
        self.pid = os.fork()
        if self.pid == 0:
            _be_program(command, env, stdout)

    def poll(self) -> Optional[int]:
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.returncode = exit_code(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return self.returncode


def _be_program(command, environment, output):
    code = 1
    try:
        os.setsid()
        if output is not None:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
        tqdm.set_lock(threading.RLock())  # or the one of the parent, which may be held
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(environment)
        sys.argv[:] = [word for word in command[1:] if word != "-u"]
        if sys.argv[0] == "-m":
            _, module, *_ = sys.argv
            del sys.argv[0]
            sys.modules.pop(module, None)  # it is to run, and under its other name
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
