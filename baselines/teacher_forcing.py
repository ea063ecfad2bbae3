"""How often a decoder in training reads its captions' own words, as training goes on."""

import math

SCHEDULES = ("always", "never", "linear", "exponential", "inverse_sigmoid")


def teacher_forcing(schedule: str, epoch: int, k: float) -> float:
    """The probability in `epoch`, counted from 0, that a word read is the caption's own.

    linear: 1 - epoch / k, and 0 from epoch k on; exponential: k ** epoch, k below 1;
    inverse_sigmoid: k / (k + exp(epoch / k)), k of 1 or more, a half at epoch k ln k.
    Source: Bengio et al. 2015 (arXiv 1506.03099), section 2.4, with epochs for batches.
    """
    if schedule == "always":
        return 1.0
    if schedule == "never":
        return 0.0
    if schedule == "linear":
        return max(0.0, 1 - epoch / k)
    if schedule == "exponential":
        return k**epoch
    return 1 / (1 + math.exp(min(epoch / k, 700)) / k)
