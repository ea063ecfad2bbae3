"""torchrun, without its report where a process has printed what is wrong in one line.

python -m captioning.launch --standalone --nproc_per_node 4 -m captioning.train --config ...

The arguments are torchrun's. A request to stop (SIGTERM, SIGUSR1, Ctrl-C) is passed on to the
processes, and they are given time to save. torchrun itself kills them after half a minute, ignores
SIGUSR1, and fails, since it does not look at their exit codes any more.
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
    api._terminate_process_handler = _pass_on
    os.environ[PARENT] = str(os.getpid())
    for number in SIGNALS:
        signal.signal(number, _pass_on)
    try:
        torchrun.run(torchrun.parse_args(argv))
    except ChildFailedError as error:
        if any(failure.exitcode == FAILED for failure in error.failures.values()):
            return FAILED
        raise
    return 0


def _pass_on(number: int, frame) -> None:
    children = list(_children())
    if not children:
        sys.exit(0)  # no process has started, or one is being restarted
    for process in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _children() -> Iterator[int]:
    """The processes that this one has started, from Linux's /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            status = (folder / "stat").read_text(errors="replace")
            parent = status.rpartition(")")[2].split()[1]  # the name in brackets is any text
            if int(parent) == os.getpid():
                yield int(folder.name)


if __name__ == "__main__":
    sys.exit(main())
