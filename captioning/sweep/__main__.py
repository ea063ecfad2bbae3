"""Train one configuration with several mixtures of MLE and SMILE, and draw what they trade.

python -m captioning.sweep configs/caption_coco.yaml --mle 0,0.01,0.1,0.5,1
python -m captioning.sweep configs/caption_coco.yaml --ablation objective,first_token_mle
python -m captioning.sweep --collect output/caption_coco output/my_other_run

Each run is trained, then captions and scores the test split. One that is done is not done again,
one that was stopped goes on. One run a GPU, as many at once as there are GPUs; on a CPU --jobs.
The folder gets frontier.svg, table.md, and a folder and a log a run.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from captioning.runtime.errors import UserError
from captioning.runtime.program import FAILED, exit_code_unwatched
from captioning.sweep.sweep import Sweep, draw
from captioning.sweep.variants import (
    ABLATIONS,
    MLE_WEIGHTS,
    SUBSET_SIZES,
    plan,
    read_ablations,
    read_sizes,
    read_weights,
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m captioning.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("config", nargs="?", help="what all runs have in common, a YAML file, see configs/")
    add("--mle", metavar="W,W", help="MLE's shares of the mixtures (default, without --ablation: "
        f"{','.join(f'{weight:g}' for weight in MLE_WEIGHTS)})")  # fmt: skip
    add("--ablation", metavar="NAME,NAME", help=f"{', '.join(ABLATIONS)}, or all of them")
    add("--subset_sizes", metavar="N,N", help="words drawn for a token in the ablation subset_size "
        f"(default: {','.join(map(str, SUBSET_SIZES))})")  # fmt: skip
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
    return exit_code_unwatched(lambda: _run(arguments), stopped)


def _run(arguments: argparse.Namespace) -> int:
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("a sweep starts its runs itself, one a GPU: call it without torchrun")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UserError(f"--jobs is {arguments.jobs}; it must be 1 or more")
    if arguments.config is None:
        if not arguments.collect:
            raise UserError("name a configuration to train, or finished runs with --collect")
        if arguments.mle or arguments.ablation:
            raise UserError("--mle and --ablation need a configuration to train")
        draw([], arguments.collect, arguments.output_dir or Path("output/sweep"))
        return 0
    try:
        ablations = read_ablations(arguments.ablation) if arguments.ablation else []
        weights = read_weights(arguments.mle) if arguments.mle else ()
        sizes = read_sizes(arguments.subset_sizes) if arguments.subset_sizes else SUBSET_SIZES
    except ValueError as error:
        raise UserError(str(error)) from error
    if not (weights or ablations):
        weights = MLE_WEIGHTS
    folder = arguments.output_dir or Path(f"output/sweep_{Path(arguments.config).stem}")
    variants = plan(weights, ablations, sizes)
    sweep = Sweep(arguments.config, arguments.pretrain, folder, arguments.overrides, variants)
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
