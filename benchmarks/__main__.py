"""Run benchmarks, each in its own process: python -m benchmarks [TOPIC ...] [--quick]."""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # its environment variables are inherited by the topics' processes

import subprocess
import sys
from collections.abc import Sequence
from typing import Optional

from adapters.program import program_parser
from benchmarks import TOPICS


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = program_parser("benchmark.sh", __doc__)
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=", ".join(TOPICS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round")
    arguments = parser.parse_args(argv)
    for topic in arguments.topics:
        if topic not in TOPICS:
            parser.error(f"{topic!r} is not a topic; choose from {', '.join(TOPICS)}")
    failed = False
    for topic in arguments.topics or TOPICS:
        command = [sys.executable, "-m", "benchmarks.topic", topic]
        if arguments.quick:
            command.append("--quick")
        failed |= subprocess.run(command).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
