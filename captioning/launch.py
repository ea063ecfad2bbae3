"""torchrun that stops runs gracefully, and does not print its own report after a one-line error.

python -m captioning.launch --standalone --nproc_per_node 4 -m captioning.train --config ...

The arguments are torchrun's. This program forwards a stop request (SIGTERM, SIGUSR1, Ctrl-C) to the
processes and gives them time to save. torchrun itself kills them after half a minute, ignores
SIGUSR1, and then always fails, because it no longer reads their exit codes.
"""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from captioning.runtime.program import FAILED
from captioning.runtime.signals import PARENT, SIGNALS


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the processes; 0 when all have succeeded. Raises ChildFailedError after a bug."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    # torchrun installs this function as the handler of SIGTERM and SIGINT.
    api._terminate_process_handler = _forward
    os.environ[PARENT] = str(os.getpid())
    for number in SIGNALS:
        signal.signal(number, _forward)
    try:
        torchrun.run(torchrun.parse_args(argv))
    except ChildFailedError as error:
        if any(failure.exitcode == FAILED for failure in error.failures.values()):
            return FAILED
        raise
    return 0


def _forward(number: int, frame) -> None:
    children = list(_children())
    if not children:
        sys.exit(0)  # no process has started, or torchrun is restarting them
    for process in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _children() -> Iterator[int]:
    """The child processes of this process, from Linux's /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has just ended
            status = (folder / "stat").read_text(errors="replace")
            parent = status.rpartition(")")[2].split()[1]  # the name in brackets may contain ")"
            if int(parent) == os.getpid():
                yield int(folder.name)


if __name__ == "__main__":
    sys.exit(main())
