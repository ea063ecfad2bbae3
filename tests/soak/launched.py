"""captioning.launch with forked processes, which need no imports."""

import os
import runpy
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from captioning import launch
from tests.soak.processes import Processes, forget_parent


class Launched(Processes):
    """The launcher in a process, with so many processes of a program as its children."""

    def __init__(self, processes: int, *arguments: object, output: Path):
        """arguments: torchrun's, then a path or -m and a module, then the program's."""
        command = ["--standalone", "--nproc_per_node", str(processes), *map(str, arguments)]
        super().__init__(_launch, command, output)


def _launch(arguments: Sequence[str]) -> int:
    SubprocessHandler._popen = lambda self, command, environment: Forked(command, environment)
    return launch.main(arguments)


class Forked:
    """As subprocess.Popen, for a child that is forked with its parent's imports."""

    def __init__(self, command: Sequence[str], env: dict[str, str]):
        self.returncode: Optional[int] = None
        self.pid = os.fork()
        if self.pid == 0:
            _be_program(command, env)

    def poll(self) -> Optional[int]:
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return self.returncode


def _be_program(command, environment):
    code = 1
    try:
        os.setsid()
        forget_parent()
        os.environ.update(environment)
        sys.argv[:] = [word for word in command[1:] if word != "-u"]
        if sys.argv[0] == "-m":
            _, module, *_ = sys.argv
            del sys.argv[0]
            sys.modules.pop(module, None)  # so that it runs as __main__
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
