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
from functools import partial
from pathlib import Path
from typing import Optional

import torch

from captioning.demo.clock import Clock
from captioning.demo.runs import DEMO_KEYS, plan_demo, train_first
from captioning.metrics.meteor import shared_process
from captioning.report.comparison import read_comparison
from captioning.report.comparison_table import score_table
from captioning.report.page import example_lines, write_report
from captioning.runtime.jobs import Job, ranks_of, run_jobs
from captioning.runtime.program import program_parser, run_program
from captioning.runtime.progress import log_line
from captioning.scenes.make import SPLITS, make_scenes
from captioning.sweep.runs import SweepRun, check_overrides, job_slots, prepare_jobs

QUICK_SPLITS = {"train": 1500, "val": 50, "test": 150}
QUICK_NOTE = (
    "This is the quick demo: a quarter of the data and a fraction of the training. It shows that "
    "everything runs; its numbers are weaker and less certain than those of the full demo."
)


def run(quick: bool, seed: int, device: str, overrides: Sequence[str]) -> None:
    """Draw, train, caption, score and report. Raises UserError if a step fails."""
    check_overrides(overrides, DEMO_KEYS, "the demo")
    name = ("-quick" if quick else "") + (f"-seed{seed}" if seed else "")
    data, folder = Path(f"data/scenes{name}"), Path(f"output/demo{name}")
    overrides = [f"seed={seed}", f"device={device}", *overrides]
    pretraining, runs, first = plan_demo(quick, data, folder, overrides)
    config, splits = pretraining.config(), QUICK_SPLITS if quick else SPLITS
    on_cpu = config.device == "cpu" or not torch.cuda.is_available()
    # The captioner is so small that several threads would be slower than one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # On a CPU, all runs are trained at once, even on two cores: if the third waited for another,
    # one core would be idle at the end.
    slots = job_slots(config.device, len(runs) if on_cpu else None)
    prepare_jobs(slots)
    # All jobs share one Java process for METEOR, which starts in the background.
    with shared_process(start=True):
        make_scenes(data, seed, splits)
        # On a CPU, two processes pre-train, whatever the number of cores, so that all machines get
        # the same results.
        ranks = 2 if on_cpu and config.batch_size % 2 == 0 else 1
        batch = f"batch_size={config.batch_size // ranks}"
        part = pretraining._replace(training=[*pretraining.training, batch])
        jobs = ranks_of(part.job(SweepRun.train), ranks)
        if first:
            jobs.append(Job("first", partial(train_first, first, data), folder / "first.log"))
        clock = Clock([pretraining, *runs], splits["train"], first or runs[:2], data)
        with clock.bar:
            clock.bar.set_description_str("pre-training")
            run_jobs(jobs, slots[:1] * len(jobs), clock)
            clock.bar.set_description_str("fine-tuning, captioning and scoring")
            run_jobs([each.job(SweepRun.train_and_score) for each in runs], slots, clock)
        comparison = read_comparison([each.folder for each in runs])
        report = folder / "report.html"
        write_report(comparison, report, QUICK_NOTE if quick else None)
    print(f"\n{score_table(comparison.rows)}\n\n{example_lines(comparison)}")
    log_line(f"\nthe report is {report}: open it in a browser")


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = program_parser("python -m captioning.demo", __doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="takes about 90 s; its results are less certain")
    add("--seed", type=int, default=0, help="seed of the world and the training")
    add("--device", default="auto", help="cpu, cuda, cuda:1; default: the GPU if there is one")
    add("overrides", nargs="*", metavar="key=value", help="for keys of all runs")
    arguments = parser.parse_intermixed_args(argv)
    stopped = "\nstopped; run the same command again to continue"
    return run_program(lambda: run(**vars(arguments)), stopped)


if __name__ == "__main__":
    sys.exit(main())
