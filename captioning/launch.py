"""Run torchrun so that a stopped run can save, and torchrun prints no report after an error line.

python -m captioning.launch --standalone --nproc_per_node 4 -m captioning.train --config ...

The arguments are those of torchrun. This program forwards a stop request (SIGTERM, SIGUSR1, Ctrl-C)
to the processes and gives them time to save. torchrun alone has no handler for SIGUSR1, so that
SIGUSR1 ends it at once. After SIGTERM or Ctrl-C, torchrun alone kills the processes half a minute
later, and then always fails, because it no longer reads their exit codes.
"""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from captioning.runtime.program import FAILED
from captioning.runtime.signals import LAUNCHER_VARIABLE, SIGNALS


def main(argv=None) -> int:
    """Run the processes. Return 0 if all succeed, and FAILED if one of them raised a UserError.

    Raises ChildFailedError after any other exception in a process.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    # torchrun installs this function as the handler of SIGTERM and SIGINT.
    api._terminate_process_handler = _forward_signal
    os.environ[LAUNCHER_VARIABLE] = str(os.getpid())
    for signal_number in SIGNALS:
        signal.signal(signal_number, _forward_signal)
    try:
        torchrun.run(torchrun.parse_args(argv))
    except ChildFailedError as error:
        if any(failure.exitcode == FAILED for failure in error.failures.values()):
            return FAILED
        raise
    return 0


def _forward_signal(signal_number: int, frame) -> None:
    children = list(_child_pids())
    if not children:
        sys.exit(0)  # no process has started yet, or torchrun is restarting the processes
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal_number)


def _child_pids() -> Iterator[int]:
    """Yield the ids of this process's children, without /proc/PID/task/TID/children.

    Not every kernel has that file.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has just ended
            status = (folder / "stat").read_text(errors="replace")
            # The name in brackets may contain ")".
            parent_pid = status.rpartition(")")[2].split()[1]
            if int(parent_pid) == os.getpid():
                yield int(folder.name)


if __name__ == "__main__":
    sys.exit(main())
