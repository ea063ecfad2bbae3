"""Averages the runs of a variant over seeds: means with intervals."""

import math
import statistics
from collections.abc import Sequence

from captioning.metrics.bootstrap import Estimate
from captioning.report.comparison import Row

NORMAL = 1.96  # standard deviations of a 95 % interval
# The same for Student's t with 1 to 9 degrees of freedom, used if the deviation is estimated.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def over_seeds(rows: Sequence[Row], label: str) -> Row:
    """The mean of each metric that all runs have, with a 95 % interval over seeds and images.

    The variance has two parts. The variance over images is taken from the runs' own intervals; more
    runs do not reduce it, because all runs caption the same images. The variance over seeds is
    divided by the number of seeds.
    """
    if len(rows) == 1:
        return rows[0]
    shared = [name for name in rows[0].metrics if all(name in row.metrics for row in rows)]
    metrics = {name: _mean([row.metrics[name] for row in rows]) for name in shared}
    return Row(label, rows[0].kind, rows[0].captions, metrics)


def _mean(estimates: Sequence[Estimate]) -> Estimate:
    value = statistics.mean(e.value for e in estimates)
    count = estimates[0].n
    if any(e.low is None or e.high is None for e in estimates):
        return Estimate(value, None, None, count)
    of_images = statistics.mean(((e.high - e.low) / (2 * NORMAL)) ** 2 for e in estimates)
    reach = half_width(of_images, [e.value for e in estimates])
    # A metric that is never negative gets no negative lower limit.
    least = 0.0 if all(e.low >= 0 for e in estimates) else -math.inf
    return Estimate(value, max(value - reach, least), value + reach, count)


def half_width(of_images: float, values: Sequence[float]) -> float:
    """Half the width of a mean's 95 % interval.

    of_images: the variance over images. values: one value per seed. With few seeds, Student's t
    makes the interval wider. A single seed adds no variance.
    """
    if len(values) == 1:
        return NORMAL * math.sqrt(of_images)
    t = STUDENT[min(len(values) - 1, len(STUDENT)) - 1]
    of_seeds = statistics.variance(values) / len(values)
    return math.sqrt(NORMAL**2 * of_images + t**2 * of_seeds)
