"""Run torchrun so that runs stop gracefully, and one-line errors are not followed by a report.

python -m captioning.launch --standalone --nproc_per_node 4 -m captioning.train --config ...

The arguments are torchrun's. This program forwards a stop request (SIGTERM, SIGUSR1, Ctrl-C) to the
processes and gives them time to save. torchrun itself ignores SIGUSR1. After SIGTERM or Ctrl-C it
kills the processes half a minute later, and always fails, because it does not read their exit codes
any more.
"""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from captioning.runtime.program import FAILED
from captioning.runtime.signals import PARENT, SIGNALS


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the processes; return 0 if all succeed, FAILED if one reported a one-line error.

    Raises ChildFailedError after a bug.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    # torchrun installs this function as the handler of SIGTERM and SIGINT.
    api._terminate_process_handler = _forward_signal
    os.environ[PARENT] = str(os.getpid())
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
    pid = os.getpid()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not children:
        sys.exit(0)  # no process has started, or torchrun is restarting them
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal_number)


if __name__ == "__main__":
    sys.exit(main())
