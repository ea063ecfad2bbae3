"""Train one configuration with several mixtures of MLE and SMILE, and draw what they trade.

python -m captioning.sweep configs/caption_coco.yaml --mle 0,0.01,0.1,0.5,1
python -m captioning.sweep configs/caption_coco.yaml --ablation objective,first_token_mle
python -m captioning.sweep configs/demo_finetune.yaml --objectives all --seeds 3
python -m captioning.sweep --collect output/caption_coco output/my_other_run

Each run is trained, then captions and scores the test split. One that is done is not done again,
one that was stopped goes on. One run a GPU, as many at once as there are GPUs; on a CPU --jobs.
The folder gets frontier.svg, table.md, report.html, and a folder and a log a run.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Callable, Optional

from captioning import train
from captioning.config import Config, load_config
from captioning.files.writing import write_text
from captioning.models import checkpoints
from captioning.report.comparison import Row, compare
from captioning.report.page import write_report
from captioning.report.runs import Run
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.job_runner import Job
from captioning.runtime.program import FAILED, exit_code
from captioning.runtime.progress import say
from captioning.sweep import variants
from captioning.sweep.frontier import Entry, draw_frontier, markdown_table
from captioning.sweep.one_run import train_and_score, without_pretrained
from captioning.sweep.over_seeds import over_seeds
from captioning.sweep.parallel_runs import run_in_slots, slots
from captioning.training.validation_history import is_done

PRETRAIN = "pretrain"
# What the sweep sets by itself, besides what its runs differ in.
OWN_KEYS = ("output_dir", "resume")
QUICK = ("max_epoch=1", "eval_every=1", "num_beams=1")
SEVERAL = (
    "Scores are means over up to {} seeds, their intervals over seeds and images. Captions, curves "
    "and lengths are those of the first."
)


class Sweep:
    """The variants of one configuration, each in a folder of its own within `folder`.

    pretrain: a configuration that is trained first, in the folder of that name; the others start
    from its best checkpoint. Raises UserError where a key is the sweep's own or impossible.
    """

    def __init__(
        self, config: str, pretrain: Optional[str], folder: Path, keys: Sequence[str], runs: list
    ):
        varied = {each.partition("=")[0] for run in runs for each in run.overrides}
        for key in (key.partition("=")[0] for key in keys):
            if key in {*OWN_KEYS, *varied, *variants.varied_keys()} or (
                pretrain and key == "pretrained"
            ):
                raise UserError(f"{key} is what the runs differ in, or the sweep sets it itself")
        self.config, self.pretrain, self.folder, self.keys = config, pretrain, folder, list(keys)
        if pretrain:
            self._load(pretrain, PRETRAIN, keys)
        self.variants = runs
        self.trained: dict[str, Config] = {}
        self.scored: dict[str, Config] = {}
        for name, _, overrides, _ in runs:
            given = self._overrides(name, overrides)
            self.trained[name] = self._load(config, name, given)
            self.scored[name] = self._load(config, name, without_pretrained(given))
            if self.trained[name].reward:
                raise UserError(f"{config}: unset reward, which trains beside what runs differ in")
        if any(c.split != self.trained[runs[0].name].split for c in self.trained.values()):
            raise UserError(f"{config}: each seed divides train_file anew: give split a seed")

    def done(self) -> list[variants.Variant]:
        """The variants that are trained and scored."""
        return [v for v in self.variants if is_done(self.trained[v.name], self.scored[v.name])]

    def train(self, parallel: Optional[int]) -> dict[str, str]:
        """Do what is not done, `parallel` at a time; why, by name, of the runs that failed."""
        finished = self.done()
        left = [variant for variant in self.variants if variant not in finished]
        say(f"runs in {self.folder}: {len(self.variants)}, of which {len(finished)} are done")
        if not left:
            return {}
        free = slots(self.trained[left[0].name].device, parallel)
        if self.pretrain:
            job = self._job(PRETRAIN, train.main, self.pretrain, ())
            failed = run_in_slots([job], free[:1])
            if failed:
                raise UserError(f"{PRETRAIN} failed: {failed[PRETRAIN]}")
        jobs = [self._job(v.name, train_and_score, self.config, v.overrides) for v in left]
        return run_in_slots(jobs, free)

    def _job(self, name: str, do: Callable, config: str, overrides: Sequence[str]) -> Job:
        arguments = ["--config", config, "--output_dir", str(self.folder / name)]
        arguments += self._overrides(name, overrides)
        return Job(name, partial(do, arguments), self.folder / f"{name}.log")

    def _load(self, config: str, name: str, overrides: Sequence[str]) -> Config:
        return load_config(config, overrides, {"output_dir": str(self.folder / name)})

    def _overrides(self, name: str, overrides: Sequence[str]) -> list[str]:
        given = [*self.keys, *overrides]
        if self.pretrain and name != PRETRAIN:
            given.append(f"pretrained={self.folder / PRETRAIN / checkpoints.BEST}")
        return given


def draw(done: Sequence[variants.Variant], collected: Sequence[Path], folder: Path) -> None:
    """Write frontier.svg, table.md and report.html of the finished runs, and print the table.

    collected: folders of runs from elsewhere, which are called what the report calls them. Raises
    UserError for what is no run.
    """
    folders = [*(folder / variant.name for variant in done), *collected]
    comparison = compare(folders)
    runs = comparison.rows[-len(folders) :]
    entries = [Entry(comparison.human, comparison.human.label)] if comparison.human else []
    of_variant: dict[str, list[Row]] = {}  # of each seed
    shown: dict[str, Run] = {}  # of the first
    for variant, run, row in zip(done, comparison.runs, runs):
        of_variant.setdefault(variant.label, []).append(row)
        shown.setdefault(variant.label, run)
    weights = {variant.label: variant.weight for variant in done}
    for label, rows in of_variant.items():
        row = over_seeds(rows, label)
        entries.append(Entry(row, label, weights[label]))
        shown[label] = replace(shown[label], label=label, metrics=row.metrics)
    for run, row in zip(comparison.runs[len(done) :], runs[len(done) :]):
        share = variants.mle_share(run.config) if run.trained else None
        entries.append(Entry(row, run.label, share))
    for line in comparison.missing:
        say(line)
    folder.mkdir(parents=True, exist_ok=True)
    table = markdown_table(entries)
    write_text(table, folder / "table.md")
    print(table, end="")
    seeds = max(map(len, of_variant.values()), default=1)
    pictured = replace(comparison, runs=[*shown.values(), *comparison.runs[len(done) :]])
    write_report(pictured, folder / "report.html", SEVERAL.format(seeds) if seeds > 1 else None)
    figure = folder / "frontier.svg"
    if draw_frontier(entries, figure) is None:
        say("fewer than two of them have an accuracy and a descriptiveness to draw: no figure")
    else:
        say(f"the figure is {figure}, the table {folder / 'table.md'}")
    say(f"the report is {folder / 'report.html'}: open it in a browser")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m captioning.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("config", nargs="?", help="what all runs have in common, a YAML file, see configs/")
    add("--mle", metavar="W,W", help="MLE's shares of the mixtures (default, without --ablation: "
        f"{','.join(f'{weight:g}' for weight in variants.MLE_WEIGHTS)})")  # fmt: skip
    add("--ablation", metavar="NAME,NAME", help=f"{', '.join(variants.ABLATIONS)}, or all of them")
    add("--subset_sizes", metavar="N,N", help="words drawn for a token in the ablation subset_size "
        f"(default: {','.join(map(str, variants.SUBSET_SIZES))})")  # fmt: skip
    add("--objectives", metavar="NAME,NAME", help="each alone, or all of them, and mixtures")
    add("--seeds", type=int, default=1, metavar="N",
        help="runs of each with seeds 0 to N - 1, told as one (default: one run)")  # fmt: skip
    add("--quick", action="store_true", help="one epoch and greedy captions: shows that all runs")
    add("--pretrain", metavar="CONFIG", help="train this first, once; all runs start from its best")
    add("--collect", nargs="+", default=[], metavar="RUN", type=Path,
        help="finished runs to draw as well, or alone")  # fmt: skip
    add("--output_dir", type=Path, help="default: output/sweep_NAME OF CONFIG")
    add("--jobs", type=int, help="runs at the same time (default: one a GPU, else 1)")
    add("overrides", nargs="*", metavar="key=value", help="for keys of all runs, --pretrain's too")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """0; 2 after lines that say what is wrong or which runs failed; 130 when it was stopped."""
    arguments = build_parser().parse_intermixed_args(argv)
    stopped = "stopped; the same command goes on from here"
    return exit_code(lambda: _run(arguments), stopped)


def _run(arguments: argparse.Namespace) -> int:
    if distributed.announced() > 1:
        raise UserError("a sweep starts its runs itself, one a GPU: call it without torchrun")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UserError(f"--jobs is {arguments.jobs}; it must be 1 or more")
    if arguments.seeds < 1:
        raise UserError(f"--seeds is {arguments.seeds}; it must be 1 or more")
    if arguments.config is None:
        if not arguments.collect:
            raise UserError("name a configuration to train, or finished runs with --collect")
        if arguments.mle or arguments.ablation or arguments.objectives:
            raise UserError("--mle, --ablation and --objectives need a configuration to train")
        draw([], arguments.collect, arguments.output_dir or Path("output/sweep"))
        return 0
    ablations = variants.read_ablations(arguments.ablation) if arguments.ablation else []
    weights = variants.read_weights(arguments.mle) if arguments.mle else ()
    sizes = variants.SUBSET_SIZES
    if arguments.subset_sizes:
        sizes = variants.read_sizes(arguments.subset_sizes)
    named = variants.read_objectives(arguments.objectives) if arguments.objectives else []
    if not (weights or ablations or named):
        weights = variants.MLE_WEIGHTS
    folder = arguments.output_dir or Path(f"output/sweep_{Path(arguments.config).stem}")
    runs = [*variants.plan(weights, ablations, sizes), *variants.of_objectives(named)]
    runs = variants.with_seeds(list({run.name: run for run in runs}.values()), arguments.seeds)
    keys = [*arguments.overrides, *(QUICK if arguments.quick else ())]
    sweep = Sweep(arguments.config, arguments.pretrain, folder, keys, runs)
    failures = sweep.train(arguments.jobs)
    try:
        done = sweep.done()
        if done or arguments.collect:
            draw(done, arguments.collect, folder)
    finally:
        for name, reason in failures.items():
            print(f"error: {name} failed: {reason}", file=sys.stderr)
    return FAILED if failures else 0


if __name__ == "__main__":
    sys.exit(main())
