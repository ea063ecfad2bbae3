"""Compares the runs of a sweep in a table, a figure and a report; averages them over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from captioning.files.writing import write_text
from captioning.metrics.intervals import Estimate
from captioning.report.comparison import read_comparison
from captioning.report.comparison_table import score_table
from captioning.report.page import write_report
from captioning.report.plane import draw_plane
from captioning.report.runs import Run
from captioning.runtime.progress import log_line
from captioning.sweep.variants import mle_share

SEED_NOTE = (
    "Scores are means over up to {} seeds, their intervals over seeds and images. Captions, curves "
    "and lengths are from the first seed."
)
_Z_95 = 1.96  # half the width of a 95 % interval, divided by a known standard deviation
# Half the width divided by a standard deviation that is estimated from 2, 3, ... 10 values: the
# quantiles of Student's t for 1 to 9 degrees of freedom.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def write_comparison(
    swept: Mapping[str, Sequence[Path]], collected: Sequence[Path], folder: Path
) -> None:
    """Write frontier.svg, table.md and report.html of finished runs, and print the table.

    swept: {label of a variant: folders of its runs, one per seed}. collected: folders of other
    runs. Raises UserError if a folder has no run.
    """
    comparison = read_comparison([*chain.from_iterable(swept.values()), *collected])
    remaining = iter(comparison.runs)
    runs = [
        mean_over_seeds([next(remaining) for _ in seeds], label) for label, seeds in swept.items()
    ]
    comparison = replace(comparison, runs=[*runs, *remaining])
    for line in comparison.missing:
        log_line(line)
    folder.mkdir(parents=True, exist_ok=True)
    table = score_table(comparison.rows, markdown=True)
    print(table)
    write_text(f"{table}\n", folder / "table.md")
    seeds = max(map(len, swept.values()), default=1)
    report = folder / "report.html"
    write_report(comparison, report, SEED_NOTE.format(seeds) if seeds > 1 else None)
    mixtures = mixtures_by_weight(comparison.runs)
    figure = draw_plane(comparison.rows, {"mixtures": mixtures} if len(mixtures) > 1 else {})
    if figure is None:
        log_line("no figure: fewer than two runs have both metrics of the axes")
    else:
        write_text(figure, folder / "frontier.svg")
        log_line(f"the figure is {folder / 'frontier.svg'}, the table {folder / 'table.md'}")
    log_line(f"the report is {report}: open it in a browser")


def mixtures_by_weight(runs: Sequence[Run]) -> list[Run]:
    """Return the mixtures of MLE and SMILE, from SMILE alone to MLE alone, one for each weight.

    The first run of a weight counts: ablations of SMILE follow it.
    """
    by_share = {}
    for run in runs:
        if run.is_trained and (share := mle_share(run.config)) is not None:
            by_share.setdefault(share, run)
    return [by_share[share] for share in sorted(by_share)]


def mean_over_seeds(runs: Sequence[Run], label: str) -> Run:
    """Return the first run with the means of the metrics that all runs have, and a new label.

    The 95 % interval of a mean includes two variances. The variance over images is computed from
    the intervals of the runs; seeds do not reduce it, because all runs caption the same images. The
    variance over seeds is divided by their number.
    """
    if len(runs) == 1:
        return replace(runs[0], label=label)
    means = {
        name: _mean_estimate([run.metrics[name] for run in runs])
        for name in runs[0].metrics
        if all(name in run.metrics for run in runs)
    }
    return replace(runs[0], label=label, metrics=means)


def _mean_estimate(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of one metric over two seeds or more, see `mean_over_seeds`."""
    values, count = [each.value for each in estimates], len(estimates)
    mean = statistics.mean(values)
    if any(each.low is None for each in estimates):
        return Estimate(mean, n=estimates[0].n)
    image_variance = statistics.mean(((e.high - e.low) / (2 * _Z_95)) ** 2 for e in estimates)
    # With few seeds, Student's t makes the interval wider.
    margin = math.hypot(
        _Z_95 * math.sqrt(image_variance),
        _T_95[min(count - 2, len(_T_95) - 1)] * statistics.stdev(values) / math.sqrt(count),
    )
    # A metric that is never negative gets no negative lower limit.
    lowest = 0.0 if all(each.low >= 0 for each in estimates) else -math.inf
    return Estimate(mean, max(mean - margin, lowest), mean + margin, estimates[0].n)
