"""Averages the scores of a variant over seeds, and computes 95 % intervals of the means."""

import math
import statistics
from collections.abc import Sequence

from captioning.metrics.bootstrap import Estimate
from captioning.report.comparison import Row

Z_95 = 1.96  # half the width of a 95 % interval, divided by a standard deviation that is known
# Half the width divided by a standard deviation that is estimated from 2, 3, ... 10 values: the
# quantiles of Student's t for 1 to 9 degrees of freedom.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def mean_over_seeds(rows: Sequence[Row], label: str) -> Row:
    """Return a row with the mean of each metric that all runs have, with a 95 % interval.

    rows: one run per seed; a single run is returned unchanged. label: the label of the new row. The
    interval includes two variances. The variance over images is computed from the intervals of the
    runs. More seeds do not reduce it, because all runs caption the same images. The variance over
    seeds is divided by the number of seeds.
    """
    if len(rows) == 1:
        return rows[0]
    shared_names = [name for name in rows[0].metrics if all(name in row.metrics for row in rows)]
    metrics = {name: _mean_estimate([row.metrics[name] for row in rows]) for name in shared_names}
    return Row(label, rows[0].kind, rows[0].captions, metrics)


def _mean_estimate(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of one metric over seeds, see `mean_over_seeds`."""
    value = statistics.mean(e.value for e in estimates)
    count = estimates[0].n
    if any(e.low is None or e.high is None for e in estimates):
        return Estimate(value, n=count)
    image_variance = statistics.mean(((e.high - e.low) / (2 * Z_95)) ** 2 for e in estimates)
    margin = half_width(image_variance, [e.value for e in estimates])
    # A metric that is never negative gets no negative lower limit.
    lower_limit = 0.0 if all(e.low >= 0 for e in estimates) else -math.inf
    return Estimate(value, max(value - margin, lower_limit), value + margin, count)


def half_width(image_variance: float, values: Sequence[float]) -> float:
    """Return half the width of a mean's 95 % interval.

    image_variance: the variance of the mean over images. values: the metric's value for each seed.
    With few seeds, Student's t makes the interval wider. With a single seed, the variance over
    seeds is unknown, so only `image_variance` counts.
    """
    if len(values) == 1:
        return Z_95 * math.sqrt(image_variance)
    t = T_95[min(len(values) - 1, len(T_95)) - 1]
    seed_variance = statistics.variance(values) / len(values)
    return math.sqrt(Z_95**2 * image_variance + t**2 * seed_variance)
