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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from adapters.program import program_parser
from captioning.files.writing import write_text
from captioning.report.comparison import read_comparison
from captioning.report.page import write_report
from captioning.report.runs import Run
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.program import FAILED, run_program
from captioning.runtime.progress import log_line
from captioning.sweep import variants
from captioning.sweep.decoding_table import write_decodings
from captioning.sweep.decodings import JUDGE, drop_shares, read_decodings, with_drop_shares
from captioning.sweep.frontier import Entry, draw_frontier, markdown_table
from captioning.sweep.over_seeds import mean_over_seeds
from captioning.sweep.runs import Sweep, choose_judge
from smile import OBJECTIVES

QUICK = ("max_epoch=1", "eval_every=1", "num_beams=1")
SEED_NOTE = (
    "Scores are means over up to {} seeds, their intervals over seeds and images. Captions, curves "
    "and lengths are from the first seed."
)


def write_files(done: Sequence[variants.Variant], collected: Sequence[Path], folder: Path) -> None:
    """Write frontier.svg, table.md and report.html of the finished runs, and print the table.

    done: the finished variants of the sweep; their runs are in `folder`. collected: the folders of
    other runs. Raises UserError if a folder has no run.
    """
    comparison = read_comparison([*(folder / variant.name for variant in done), *collected])
    runs_by_label = {}  # {variant's label: one run per seed}
    for variant, run in zip(done, comparison.runs):
        runs_by_label.setdefault(variant.label, []).append(run)
    weights = {variant.label: variant.weight for variant in done}
    entries = [Entry(comparison.human)] if comparison.human else []
    for label, runs in runs_by_label.items():
        run = replace(runs[0], label=label, metrics=mean_over_seeds(runs, label).metrics)
        entries.append(Entry(run, weights[label]))
    for run in comparison.runs[len(done) :]:
        entries.append(Entry(run, variants.mle_share(run.config) if run.is_trained else None))
    reported_runs = [entry.row for entry in entries if isinstance(entry.row, Run)]
    for line in comparison.missing:
        log_line(line)
    folder.mkdir(parents=True, exist_ok=True)
    table = markdown_table(entries)
    write_text(table, folder / "table.md")
    print(table, end="")
    most_seeds = max(map(len, runs_by_label.values()), default=1)
    note = SEED_NOTE.format(most_seeds) if most_seeds > 1 else None
    write_report(replace(comparison, runs=reported_runs), folder / "report.html", note)
    figure = folder / "frontier.svg"
    if draw_frontier(entries, figure) is None:
        log_line("no figure: fewer than two runs have both metrics of the axes")
    else:
        log_line(f"the figure is {figure}, the table {folder / 'table.md'}")
    log_line(f"the report is {folder / 'report.html'}: open it in a browser")


def build_parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m captioning.sweep", __doc__)
    add = parser.add_argument
    add("config", nargs="?", help="the configuration of all runs, a YAML file, see configs/")
    add("--mle", metavar="W,W", help="MLE's shares of the mixtures (default, without --ablation: "
        f"{','.join(f'{weight:g}' for weight in variants.MLE_WEIGHTS)})")  # fmt: skip
    add("--ablation", metavar="NAME,NAME", help=f"{', '.join(variants.ABLATIONS)}, or all of them")
    add("--subset_sizes", metavar="N,N", default=",".join(map(str, variants.SUBSET_SIZES)),
        help="words per token in the ablation subset_size (default: %(default)s)")  # fmt: skip
    add("--objectives", metavar="NAME,NAME", help="one run per objective, or all, and mixtures")
    add("--decodings", metavar="NAME,NAME", help="caption with each decoding, or all, and compare")
    add("--seeds", type=int, default=1, metavar="N",
        help="train each variant with seeds 0 to N - 1 and average (default: one run)")  # fmt: skip
    add("--quick", action="store_true", help="one epoch and greedy captions, to test the sweep")
    add("--pretrain", metavar="CONFIG", help="train this once first; all runs start from its best")
    add("--collect", nargs="+", default=[], metavar="RUN", type=Path,
        help="finished runs to add to the figure, or to draw without a sweep")  # fmt: skip
    add("--output_dir", type=Path, help="default: output/sweep_NAME OF CONFIG")
    add("--jobs", type=int, help="runs at the same time (default: one per GPU, else 1)")
    add("overrides", nargs="*", metavar="key=value", help="for keys of all runs, --pretrain's too")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program. Return the exit code: 0, or 2 after an error, or 130 if stopped.

    An error line is printed for each failed run.
    """
    arguments = build_parser().parse_intermixed_args(argv)
    stopped = "stopped; run the same command again to continue"
    return run_program(lambda: _run(arguments), stopped)


def _check_arguments(arguments):
    """Raise UserError for impossible arguments."""
    if distributed.env_world_size() > 1:
        raise UserError("a sweep starts its runs itself, one per GPU: call it without torchrun")
    variants.check_counts(arguments, "jobs", "seeds")
    if arguments.config is None:
        if not arguments.collect:
            raise UserError("name a configuration to train, or finished runs with --collect")
        names = ("mle", "ablation", "objectives", "decodings", "pretrain", "quick", "jobs")
        unused = [f"--{name}" for name in names if getattr(arguments, name)]
        unused += ["--seeds"] * (arguments.seeds > 1)
        if unused:
            raise UserError(f"{', '.join(unused)}: name a configuration to train")


def _plan(arguments) -> list[variants.Variant]:
    """Return the variants that the user named, without seeds and decodings. Raises UserError."""
    ablations = variants.read_names(arguments.ablation, variants.ABLATIONS, "an ablation")
    objectives = variants.read_names(arguments.objectives, OBJECTIVES, "an objective")
    weights = variants.read_weights(arguments.mle) if arguments.mle else ()
    sizes = variants.read_sizes(arguments.subset_sizes)
    if not (weights or ablations or objectives):
        weights = variants.MLE_WEIGHTS
    return variants.plan(weights, objectives, ablations, sizes)


def _run(arguments) -> int:
    _check_arguments(arguments)
    if arguments.config is None:
        write_files([], arguments.collect, arguments.output_dir or Path("output/sweep"))
        return 0
    folder = arguments.output_dir or Path(f"output/sweep_{Path(arguments.config).stem}")
    planned = _plan(arguments)
    decodings = read_decodings(arguments.decodings)
    if decodings:
        planned = with_drop_shares(planned, drop_shares(decodings))
    planned = variants.with_seeds(planned, arguments.seeds)
    if JUDGE in decodings:
        for variant in planned:
            choose_judge(variant, planned)
    overrides = [*arguments.overrides, *(QUICK if arguments.quick else ())]
    sweep = Sweep(arguments.config, arguments.pretrain, folder, overrides, planned)
    failures = sweep.train(arguments.jobs)
    if decodings and not failures:
        failures = sweep.decode(decodings, arguments.jobs)
        if not failures:
            print(write_decodings([sweep], decodings, folder), end="")
    try:
        done = sweep.done()
        if done or arguments.collect:
            write_files(done, arguments.collect, folder)
    finally:
        for name, reason in failures.items():
            print(f"error: {name} failed: {reason}", file=sys.stderr)
    return FAILED if failures else 0


if __name__ == "__main__":
    sys.exit(main())
