"""See what SMILE does, in minutes and without any download.

python -m captioning.demo [--quick] [--seed 1] [--device cpu] [key=value ...]

Draws scenes with captions, and trains a small captioner on them with MLE. Three copies of the
captioner are fine-tuned: with MLE, with SMILE and with both. Each copy captions the test split. A
report compares the captions and their scores. The same command continues a stopped demo.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import os
import sys
from collections.abc import Sequence
from typing import Optional

from adapters.program import program_parser
from captioning.demo.runs import Demo
from captioning.demo.status import DemoProgress
from captioning.metrics.meteor import shared_process
from captioning.runtime.jobs import start_server
from captioning.runtime.program import run_program
from captioning.sweep.parallel_runs import TRAINING_MODULES


def run(demo: Demo) -> None:
    """Run all steps, and log an estimate of the time left before each step.

    If a step fails, its error is raised.
    """
    steps = demo.steps()
    # The captioner is so small that several threads would be slower than one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the jobs
    start_server(TRAINING_MODULES)
    status = DemoProgress(steps)
    # All jobs share one Java process for METEOR, which starts in the background.
    with shared_process(start=True):
        for number, step in enumerate(steps):
            status.begin(number)
            try:
                step.run(status)
            finally:
                status.end()


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = program_parser("python -m captioning.demo", __doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="takes about 90 s; its results are less certain")
    add("--seed", type=int, default=0, help="seed of the world and the training")
    add("--device", help="cpu, cuda, cuda:1; default: the GPU if there is one")
    add("overrides", nargs="*", metavar="key=value", help="for keys of all runs")
    arguments = parser.parse_intermixed_args(argv)
    stopped = "\nstopped; run the same command again to continue"
    return run_program(lambda: run(Demo(**vars(arguments))), stopped)


if __name__ == "__main__":
    sys.exit(main())
