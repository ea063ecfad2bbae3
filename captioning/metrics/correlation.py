"""Kendall's tau of metrics with human ratings of captions.

    python -m captioning.metrics.correlation ExpertAnnotations.txt --metrics coco length
    python -m captioning.metrics.correlation ratings.jsonl --images photos --metrics clipscore

RATINGS is a file of Flickr8k-Expert, Flickr8k-CF or Composite as published, or capevalkit's lines.
Published results are tau-c for Flickr8k-Expert and Composite, and tau-b for Flickr8k-CF. If lines
name several systems, their means are correlated, too, and metrics of a system's captions together.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Optional

import numpy as np

from captioning.files.writing import write_json
from captioning.metrics.arguments import add_metrics, parse
from captioning.metrics.bootstrap import Estimate, bounds, resampled_counts
from captioning.metrics.evaluator import Settings, build_evaluators
from captioning.metrics.ratings import Rated, read_ratings
from captioning.metrics.registry import EVALUATORS, METRICS, metric_of
from captioning.metrics.score_table import align
from captioning.metrics.scoring import score
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.program import exit_code
from captioning.runtime.progress import log_line
from captioning.runtime.registry import load

_AT_ONCE = 2**22  # resampled weights in memory
FEWEST_SYSTEMS = 3

Columns = dict[str, np.ndarray]  # {metric: values (n,)}, nan for a missing value


def kendall(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return tau-b and tau-c (R, 2) of n pairs for R rows of weights; nan if undefined.

    x, y: (n,). weights: (R, n), how often each pair counts. Source: Kendall 1945; Stuart 1953.
    """
    if len(np.unique(x)) < len(np.unique(y)):
        x, y = y, x  # the loop is over the values of y
    order = np.argsort(x, kind="stable")
    x, y, weights = x[order], y[order], weights[:, order].astype(float)
    first, last = (np.searchsorted(x, x, side) for side in ("left", "right"))
    below = np.zeros_like(weights)  # of pairs with a smaller y
    surplus = np.zeros(len(weights))  # concordant less discordant pairs
    levels = []  # weight of each value of y
    for value in np.unique(y):
        here = np.flatnonzero(y == value)
        own = weights[:, here]
        sums = np.pad(below.cumsum(1), ((0, 0), (1, 0)))  # (R, n + 1)
        smaller, larger = sums[:, first[here]], sums[:, -1:] - sums[:, last[here]]
        surplus += (own * (smaller - larger)).sum(1)
        below[:, here] = own
        levels.append(own.sum(1))
    groups = [np.stack(levels, 1), np.add.reduceat(weights, np.unique(first), 1)]
    total = weights.sum(1)
    pairs = total * (total - 1) / 2
    untied = [pairs - (each * (each - 1) / 2).sum(1) for each in groups]
    fewest = np.minimum(*((each > 0).sum(1) for each in groups))
    with np.errstate(invalid="ignore", divide="ignore"):
        tau_b = surplus / np.sqrt(untied[0] * untied[1])
        tau_c = 2 * surplus * fewest / (total**2 * (fewest - 1))
    return np.stack([tau_b, tau_c], 1)


def correlate(x: np.ndarray, y: np.ndarray, clusters: np.ndarray) -> Optional[list[Estimate]]:
    """Return tau-b and tau-c of the pairs without nan; None if they are undefined.

    clusters: (n,), the image of each pair. Images are resampled, each with all of its pairs.
    """
    both = ~np.isnan(x) & ~np.isnan(y)
    x, y, clusters = x[both], y[both], np.unique(clusters[both], return_inverse=True)[1]
    if len(x) < 2 or len(np.unique(x)) < 2 or len(np.unique(y)) < 2:
        return None
    [value] = kendall(x, y, np.ones((1, len(x))))
    height, found = max(1, _AT_ONCE // len(x)), []
    for counts in resampled_counts(clusters.max() + 1):
        for top in range(0, len(counts), height):
            found.append(kendall(x, y, counts[top : top + height][:, clusters]))
    ends = bounds(np.concatenate(found), clusters.max() + 1)
    return [Estimate(float(v), *limits, len(x)) for v, limits in zip(value, ends)]


def values_of(rated: Sequence[Rated], arguments: argparse.Namespace) -> tuple[Columns, Columns]:
    """Return the values of each metric for the n captions, and for the systems in sorted order.

    Each system's captions are scored together. Raises UserError.
    """
    device = str(distributed.start(arguments.device))
    systems = sorted({row.system for row in rated})
    captions: Columns = {}
    sets: Columns = {}
    for number, system in enumerate(systems):
        rows = [i for i, row in enumerate(rated) if row.system == system]
        own = [rated[i] for i in rows]
        found = _scores(own, arguments, device)
        given = dict.fromkeys(name for row in own for name in row.metrics)
        columns = {name: [row.metrics.get(name) for row in own] for name in given}
        for name, values in {**found.per_image, **columns}.items():
            column = captions.setdefault(name, np.full(len(rated), np.nan))
            column[rows] = np.array(values, dtype=float)
        single = {name: each.value for name, each in found.metrics.items()}
        means = {name: captions[name][rows] for name in columns}
        single.update({name: float(np.nanmean(each)) for name, each in means.items()})
        for name, value in single.items():
            sets.setdefault(name, np.full(len(systems), np.nan))[number] = value
    return captions, sets


def _scores(rated, arguments, device):
    often = Counter(row.image for row in rated)
    ids = [
        row.image if often[row.image] == 1 else f"{row.image}#{i}" for i, row in enumerate(rated)
    ]
    images = None
    if any(load(EVALUATORS[name]).needs_images for name in arguments.metrics) and arguments.images:
        images = {i: arguments.images / row.image for i, row in zip(ids, rated)}
        for path in images.values():
            if not path.is_file():
                raise UserError(f"{path}: no such image: give the ratings' folder with --images")
    settings = Settings(images, arguments.images, arguments.cache_dir, device, arguments.batch_size)
    evaluators = build_evaluators(arguments.metrics, settings, **arguments.options)
    captions = {i: row.caption for i, row in zip(ids, rated)}
    found = score(captions, {i: row.references for i, row in zip(ids, rated)}, evaluators)
    for reason in dict.fromkeys(found.skipped.values()):
        log_line(f"skipped: {reason}")
    return found


def _table(title: str, columns: Columns, ratings: Columns, clusters: np.ndarray) -> dict:
    """Print the taus of each metric; return {metric: {rating: [tau-b, tau-c]}}."""
    names = [name for name in METRICS if name in columns]
    names += [name for name in columns if name not in METRICS]
    taus = {
        name: {rating: correlate(columns[name], y, clusters) for rating, y in ratings.items()}
        for name in names
    }
    for variant, letter in enumerate("bc"):
        rows = [(f"tau-{letter}", *ratings)]
        for name, found in taus.items():
            cells = (_shown(pair and pair[variant]) for pair in found.values())
            rows.append((metric_of(name).title, *cells))
        print(f"{title}\n{align(rows)}\n")
    return {
        name: {rating: pair and [asdict(each) for each in pair] for rating, pair in found.items()}
        for name, found in taus.items()
    }


def _shown(found: Optional[Estimate]) -> str:
    if found is None:
        return "-"
    interval = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})"
    return f"{found.value:.3f}{interval}"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program and return its exit code: 2 after a one-line error for the user."""
    parser = argparse.ArgumentParser(
        prog="python -m captioning.metrics.correlation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("ratings", type=Path, help="human ratings of captions")
    parser.add_argument("--references", type=Path, help="human captions, if RATINGS has none")
    parser.add_argument("--output", type=Path, help="a JSON file with tau-b and tau-c")
    add_metrics(parser, "the folder of the rated images")
    arguments = parse(parser, sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: _run(arguments), "stopped: nothing was written")


def _run(arguments: argparse.Namespace) -> None:
    rated = read_ratings(arguments.ratings, arguments.references)
    captions, sets = values_of(rated, arguments)
    ratings = {name: np.array([row.ratings[name] for row in rated]) for name in rated[0].ratings}
    images = np.unique([row.image for row in rated], return_inverse=True)[1]
    systems, of_system = np.unique([row.system for row in rated], return_inverse=True)
    count = f"{len(rated)} captions of {images.max() + 1} images"
    result = {"captions": _table(count, captions, ratings, images)}
    if len(systems) >= FEWEST_SYSTEMS:
        counts = np.bincount(of_system)
        means = {n: np.bincount(of_system, y) / counts for n, y in ratings.items()}
        number = np.arange(len(systems))
        result["systems"] = _table(f"means of {len(systems)} systems", sets, means, number)
    print("in brackets: 95 % bootstrap intervals, over images for captions")
    if arguments.output:
        write_json(result, arguments.output)


if __name__ == "__main__":
    sys.exit(main())
