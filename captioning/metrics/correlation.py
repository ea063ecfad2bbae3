"""Compute Kendall's tau between metrics and human ratings of captions.

    python -m captioning.metrics.correlation ExpertAnnotations.txt --metrics coco length
    python -m captioning.metrics.correlation ratings.jsonl --images photos --metrics clipscore
    python -m captioning.metrics.correlation output/sweep_demo_finetune --metrics coco facts \\
        --facts_file data/scenes/scenes.json --references data/scenes/scenes_test.json

RATINGS is a published file of Flickr8k-Expert, Flickr8k-CF or Composite, a file of capevalkit's
lines, or a folder of runs on the demo's scenes. Captions of scenes are not rated by humans: their
ratings are computed from the true and wrong facts that a caption states. Each run is then a system,
and with three or more systems their mean scores and mean ratings are correlated, too. Published
results are tau-c for Flickr8k-Expert and Composite, and tau-b for Flickr8k-CF.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

import numpy as np

from adapters.program import program_parser
from captioning.metrics.arguments import (
    add_scoring_flags,
    local_options,
    parse_scoring_arguments,
    warn_of_unused_options,
)
from captioning.metrics.bootstrap import Estimate, percentile_intervals, resampled_counts
from captioning.metrics.evaluator import Evaluator, Settings, build_evaluators
from captioning.metrics.facts import FactsOptions
from captioning.metrics.meteor import shared_process
from captioning.metrics.ratings import Rated, read_ratings
from captioning.metrics.registry import METRICS, metric_of
from captioning.metrics.scene_ratings import read_runs
from captioning.metrics.score_table import align
from captioning.metrics.scoring import score
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.program import run_program
from captioning.runtime.progress import log_line

FEWEST_SYSTEMS = 3  # with fewer, means of systems are not correlated
MAX_CELLS = 1 << 24  # of the contingency table, 128 MB in float64
Columns = Mapping[str, np.ndarray]  # {metric or rating: (n,)}; nan for a missing value


def kendall_tau(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return tau-b and tau-c of n pairs; nan if undefined.

    x, y: (n,). weights: (n,), how often each pair counts. The contingency table needs memory for
    (distinct values of x) * (distinct values of y) cells. Source: Kendall 1945; Stuart 1953.
    """
    x_values, x = np.unique(x, return_inverse=True)
    y_values, y = np.unique(y, return_inverse=True)
    shape = len(x_values), len(y_values)
    cells = np.bincount(x * shape[1] + y, weights, shape[0] * shape[1])
    table = cells.reshape(shape)
    below = table.cumsum(0) - table  # for each cell: weight of the pairs with this y, smaller x
    smaller = below.cumsum(1) - below
    larger = below.sum(1, keepdims=True) - below - smaller
    surplus = (table * (smaller - larger)).sum()  # concordant minus discordant pairs
    total = weights.sum()
    x_groups, y_groups = table.sum(1), table.sum(0)  # weights of equal values
    fewest = min(np.count_nonzero(x_groups), np.count_nonzero(y_groups))
    if fewest < 2:
        return np.nan, np.nan
    untied_x = (total**2 - (x_groups**2).sum()) / 2
    untied_y = (total**2 - (y_groups**2).sum()) / 2
    tau_b = surplus / np.sqrt(untied_y * untied_x)
    tau_c = 2 * surplus * fewest / total**2 / (fewest - 1)
    return tau_b, tau_c


def tau_estimates(x: np.ndarray, y: np.ndarray, images: np.ndarray) -> list[Estimate]:
    """Return tau-b and tau-c with bootstrap intervals. Pairs with nan are left out.

    images: (n,), the image of each pair. A bootstrap resample draws images, and takes all pairs of
    a drawn image.
    """
    both = ~np.isnan(x) & ~np.isnan(y)
    x, y, images = x[both], y[both], np.unique(images[both], return_inverse=True)[1]
    if len(np.unique(x)) * len(np.unique(y)) > MAX_CELLS:
        raise UserError("the ratings have too many different values for tau: round them")
    if not len(x):
        return [Estimate(np.nan)] * 2
    n = images.max() + 1
    taus = [kendall_tau(x, y, row[images]) for counts in resampled_counts(n) for row in counts]
    intervals = percentile_intervals(np.array(taus), n)
    values = kendall_tau(x, y, np.ones(len(x)))
    return [Estimate(tau, low, high, len(x)) for tau, (low, high) in zip(values, intervals)]


def score_rated(
    rated: Sequence[Rated], systems: Sequence[str], arguments: argparse.Namespace
) -> tuple[Columns, Columns]:
    """Return the metrics as two tables: one value per caption, and one value per system.

    A system's value is the metric's score over all of the system's captions. Raises UserError.
    """
    # An image may have several captions. `of_images` matches these keys with the image.
    rows = {f"{row.image}#{number}": row for number, row in enumerate(rated)}
    evaluators = _evaluators(rows, arguments)
    captions = defaultdict(lambda: np.full(len(rated), np.nan))
    sets = defaultdict(lambda: np.full(len(systems), np.nan))
    for number, system in enumerate(systems):
        is_own = np.array([row.system == system for row in rated])
        own = {key: row for key, row in rows.items() if row.system == system}
        texts = {key: row.caption for key, row in own.items()}
        found = score(texts, {key: row.references for key, row in own.items()}, evaluators)
        for reason in dict.fromkeys(found.skipped.values()):
            log_line(f"skipped: {reason}")
        columns = dict(found.per_caption)
        for name in next(iter(own.values())).metrics:
            columns[name] = [row.metrics[name] for row in own.values()]
        for name, column in columns.items():
            column = np.array(column, dtype=float)
            captions[name][is_own] = column
            sets[name][number] = np.nanmean(column)
        for name, estimate in found.metrics.items():
            sets[name][number] = estimate.value
    return captions, sets


def _evaluators(rows: Mapping[str, Rated], arguments: argparse.Namespace) -> list[Evaluator]:
    device = str(distributed.start(arguments.device))
    warn_of_unused_options(arguments, used_by_program=["facts_file"])
    images = None
    if arguments.images:
        images = {key: arguments.images / row.image for key, row in rows.items()}
        missing = [path for path in images.values() if not path.is_file()]
        if missing:
            raise UserError(
                f"{arguments.ratings}: {len(missing)} of {len(images)} rated images do not exist, "
                f"the first is {missing[0]}: correct --images"
            )
    settings = Settings(
        images,
        image_root=arguments.images,
        cache_dir=arguments.cache_dir,
        device=device,
        batch_size=arguments.batch_size,
    )
    return build_evaluators(arguments.metrics, settings, **local_options(arguments))


def format_taus(title: str, columns: Columns, ratings: Columns, images: np.ndarray) -> str:
    """Return a table of tau-b and a table of tau-c: a row per metric, a column per rating.

    images: see `tau_estimates`.
    """
    b_rows, c_rows = [("tau-b", *ratings)], [("tau-c", *ratings)]
    for name in sorted(columns, key=lambda name: (*METRICS, name).index(name)):
        pairs = [tau_estimates(columns[name], y, images) for y in ratings.values()]
        metric = metric_of(name).title
        b_rows.append((metric, *(_format_tau(tau_b) for tau_b, _ in pairs)))
        c_rows.append((metric, *(_format_tau(tau_c) for _, tau_c in pairs)))
    return f"{title}\n{align(b_rows)}\n\n{title}\n{align(c_rows)}\n"


def _format_tau(tau: Estimate) -> str:
    if np.isnan(tau.value):
        return "-"
    ends = "" if tau.low is None else f" ({tau.low:.2f} to {tau.high:.2f})"
    return f"{tau.value:.2f}{ends}"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program and return its exit code: 2 after a one-line error for the user."""
    parser = program_parser(
        "python -m captioning.metrics.correlation",
        __doc__,
        usage="%(prog)s RATINGS [options]; --help lists them",
    )
    parser.add_argument("ratings", type=Path, help="rated captions, or a folder of runs on scenes")
    parser.add_argument("--references", type=Path, help="human captions, if RATINGS has none")
    add_scoring_flags(parser, "the folder of the rated images")
    arguments = parse_scoring_arguments(parser, argv)
    return run_program(lambda: _run(arguments), "stopped: nothing was computed")


def _run(arguments):
    if arguments.ratings.is_dir():
        facts = FactsOptions.local_values(arguments)["facts_file"]
        if not (facts and arguments.references):
            raise UserError("runs on scenes need --facts_file and --references")
        rated = read_runs(arguments.ratings, Path(facts), arguments.references)
    else:
        rated = read_ratings(arguments.ratings, arguments.references)
    # of_system: (n,), the index in `systems` of each caption's system
    systems, of_system = np.unique([row.system for row in rated], return_inverse=True)
    with shared_process():
        captions, sets = score_rated(rated, systems, arguments)
    if not captions:
        raise UserError("nothing was scored, for the reasons above")
    ratings = {name: np.array([row.ratings[name] for row in rated]) for name in rated[0].ratings}
    images = np.unique([row.image for row in rated], return_inverse=True)[1]
    print(
        format_taus(
            f"{len(rated)} captions of {images.max() + 1} images", captions, ratings, images
        )
    )
    if len(systems) >= FEWEST_SYSTEMS:
        counts = np.bincount(of_system)
        means = {name: np.bincount(of_system, y) / counts for name, y in ratings.items()}
        print(format_taus(f"means of {len(systems)} systems", sets, means, np.arange(len(systems))))
    print("in brackets: 95 % bootstrap intervals over images, or over systems")


if __name__ == "__main__":
    sys.exit(main())
