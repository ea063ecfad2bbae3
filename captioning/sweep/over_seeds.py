"""The runs of one variant with several seeds as one line: means, and how sure they are."""

import math
import statistics
from collections.abc import Sequence

from captioning.metrics.bootstrap import Estimate
from captioning.report.comparison import Row

NORMAL = 1.96  # standard deviations of a 95 % interval
# As many where the deviation itself is estimated: Student's t, of 1 to 9 degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def over_seeds(rows: Sequence[Row], label: str) -> Row:
    """The mean of each metric that all of them have, with a 95 % interval over seeds and images.

    Its variance is that of the images, which is in each run's own interval and no smaller with more
    runs, as they caption the same ones; and that of the seeds, divided by how many there are.
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
    # What is never below zero has no interval that is.
    least = 0.0 if all(e.low >= 0 for e in estimates) else -math.inf
    return Estimate(value, max(value - reach, least), value + reach, count)


def half_width(of_images: float, values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean.

    of_images: the variance of it that is the images'; values: a seed each. A few of them tell
    little of theirs, and one tells nothing.
    """
    if len(values) == 1:
        return NORMAL * math.sqrt(of_images)
    t = STUDENT[min(len(values) - 1, len(STUDENT)) - 1]
    of_seeds = statistics.variance(values) / len(values)
    return math.sqrt(NORMAL**2 * of_images + t**2 * of_seeds)
