"""Train one configuration with several mixtures of MLE and SMILE, and draw their trade-off.

python -m captioning.sweep configs/caption_coco.yaml --mle 0,0.01,0.1,0.5,1
python -m captioning.sweep configs/caption_coco.yaml --ablation objective,first_token_mle
python -m captioning.sweep configs/demo_finetune.yaml --objectives all --seeds 3
python -m captioning.sweep --collect output/caption_coco output/my_other_run

Each run is trained, then captions and scores the test split. Finished runs are kept, and stopped
runs are resumed. Runs are parallel: one per GPU, or --jobs on a CPU. Writes frontier.svg, table.md,
report.html, and a folder and a log for each run, to --output_dir.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

from pydantic import Field, PositiveInt, TypeAdapter, ValidationError

from captioning.data.sources import read_split, references
from captioning.files.stores import require_writable
from captioning.models import checkpoints
from captioning.report.runs import read_runs
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.jobs import run_jobs
from captioning.runtime.program import FAILED, positive, program_parser, run_program
from captioning.runtime.progress import log_line, progress
from captioning.sweep import variants
from captioning.sweep.comparison import write_comparison
from captioning.sweep.runs import (
    RunLogger,
    SweepRun,
    check_overrides,
    job_slots,
    plan_runs,
    prepare_jobs,
)
from smile import OBJECTIVES

ABLATIONS = tuple(variants.ablation_variants())


def build_parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m captioning.sweep", __doc__)
    add = parser.add_argument
    add("config", nargs="?", help="the configuration of all runs, a YAML file, see configs/")
    add("--mle", metavar="W,W", help="MLE's shares of the mixtures (default, without --ablation: "
        f"{','.join(f'{weight:g}' for weight in variants.MLE_WEIGHTS)})")  # fmt: skip
    add("--ablation", metavar="NAME,NAME", help=f"{', '.join(ABLATIONS)}, or all of them")
    add("--subset_sizes", metavar="N,N", default=",".join(map(str, variants.SUBSET_SIZES)),
        help="words per token in the ablation subset_size (default: %(default)s)")  # fmt: skip
    add("--objectives", metavar="NAME,NAME", help="one run per objective, or all, and mixtures")
    add(
        "--seeds",
        type=positive,
        default=1,
        metavar="N",
        help="train each variant with seeds 0 to N - 1 and average",
    )
    add("--pretrain", metavar="CONFIG", help="train this once first; all runs start from its best")
    add("--collect", nargs="+", default=[], metavar="RUN", type=Path,
        help="finished runs to add to the figure, or to draw without a sweep")  # fmt: skip
    add("--output_dir", type=Path, help="default: output/sweep_NAME OF CONFIG")
    add(
        "--jobs",
        type=positive,
        metavar="N",
        help="runs at the same time (default: one per GPU, else 1)",
    )
    add("overrides", nargs="*", metavar="key=value", help="for keys of all runs, --pretrain's too")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program. Return the exit code: 0, or 2 after an error, or 130 if stopped.

    An error line is printed for each failed run.
    """
    arguments = build_parser().parse_intermixed_args(argv)
    stopped = "stopped; run the same command again to continue"
    return run_program(lambda: _run(arguments), stopped)


def _run(arguments: argparse.Namespace) -> int:
    """Train the runs that are not done, and compare all. Raises UserError."""
    if distributed.env_world_size() > 1:
        raise UserError("a sweep starts its runs itself, one per GPU: call it without torchrun")
    if arguments.config is None:
        names = ("mle", "ablation", "objectives", "pretrain", "jobs")
        if unused := [f"--{name}" for name in names if getattr(arguments, name)]:
            raise UserError(f"{', '.join(unused)}: name a configuration to train")
        if not arguments.collect:
            raise UserError("name a configuration to train, or finished runs with --collect")
        write_comparison({}, arguments.collect, arguments.output_dir or Path("output/sweep"))
        return 0
    planned = _plan(arguments)
    own_keys = variants.own_keys(planned) | ({"pretrained"} if arguments.pretrain else set())
    check_overrides(arguments.overrides, own_keys, "the sweep")
    folder = arguments.output_dir or Path(f"output/sweep_{Path(arguments.config).stem}")
    first, initial = [], []
    if arguments.pretrain:
        pretraining = variants.Variant("pretrain", "", ())
        first = plan_runs(arguments.pretrain, folder, [pretraining], arguments.overrides)
        initial = [f"pretrained={first[0].folder / checkpoints.BEST}"]
    runs = plan_runs(arguments.config, folder, planned, arguments.overrides, initial)
    # What comparison needs at the end is found wrong before runs train.
    require_writable(str(folder))
    scored = runs[0].config()
    references(scored, "test", read_split(scored, "test"))
    if arguments.collect:
        read_runs(arguments.collect, "test")
    failures = _train(first, runs, arguments.jobs)
    swept = {}
    for variant, run in zip(planned, runs):
        if run.is_done():
            swept.setdefault(variant.label, []).append(run.folder)
    try:
        if swept or arguments.collect:
            write_comparison(swept, arguments.collect, folder)
    finally:
        for name, reason in failures.items():
            print(f"error: {name} failed: {reason}", file=sys.stderr)
    return FAILED if failures else 0


def _plan(arguments: argparse.Namespace) -> list[variants.Variant]:
    """Return the variants that the flags name, once per seed. Raises UserError."""
    share = Annotated[float, Field(ge=0, le=1)]
    weights = _read("mle", arguments.mle, share, "weights from 0 to 1: 0,0.01,1")
    ablations = _read_names("ablation", arguments.ablation, ABLATIONS)
    objectives = _read_names("objectives", arguments.objectives, tuple(OBJECTIVES))
    sizes = arguments.subset_sizes
    sizes = _read("subset_sizes", sizes, PositiveInt, "whole numbers from 1 on: 1,10,100")
    if not (weights or ablations or objectives):
        weights = variants.MLE_WEIGHTS
    planned = variants.plan(weights, objectives, ablations, sizes)
    return variants.with_seeds(planned, arguments.seeds)


def _read_names(flag: str, text: Optional[str], allowed: tuple[str, ...]) -> Sequence[str]:
    """Return the names in a text such as "mle,focal"; all that are allowed for "all"."""
    expected = f"some of {', '.join(allowed)}, with commas, or all"
    return allowed if text == "all" else _read(flag, text, Literal[allowed], expected)


def _read(flag: str, text: Optional[str], kind: Any, expected: str) -> list:
    """Return the values in a flag's text, where commas separate them; [] for None.

    kind: the type of each. expected: what an error asks for. Raises UserError.
    """
    try:
        return TypeAdapter(list[kind]).validate_python([] if text is None else text.split(","))
    except ValidationError:
        raise UserError(f"--{flag} is {text!r}; give {expected}") from None


def _train(
    first: Sequence[SweepRun], runs: Sequence[SweepRun], parallel: Optional[int]
) -> Mapping[str, str]:
    """Train and score the runs that are not done; return {name: reason} of those that failed.

    - first: runs that are trained before, without scores; UserError if one fails
    - parallel: the number of runs at a time, see `job_slots`
    """
    pending = [run for run in runs if not run.is_done()]
    done = len(runs) - len(pending)
    log_line(f"runs in {runs[0].folder.parent}: {len(runs)}, of which {done} are done")
    if not pending:
        return {}
    slots = job_slots(pending[0].config().device, parallel)
    prepare_jobs(slots)
    with progress(len(first) + len(pending), "runs", "run") as bar:
        logger = RunLogger(bar)
        run_jobs([run.job(SweepRun.train) for run in first], slots, logger)
        jobs = [run.job(SweepRun.train_and_score) for run in pending]
        return run_jobs(jobs, slots, logger, keep_going=True)


if __name__ == "__main__":
    sys.exit(main())
