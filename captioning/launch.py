"""torchrun, without its report where a process has already said in one line what is wrong.

python -m captioning.launch --standalone --nproc_per_node 4 -m captioning.train --config ...

The arguments are torchrun's.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Optional

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

USER_ERROR = 2  # the exit code of captioning.train after such a line


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the processes; 0 when all have ended well. Raises ChildFailedError after a bug."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        torchrun.run(torchrun.parse_args(argv))
    except ChildFailedError as error:
        if any(failure.exitcode == USER_ERROR for failure in error.failures.values()):
            return USER_ERROR
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
