"""BLEU 1-4 as pycocoevalcap computes it, with intervals from the counts it sums up."""

from collections.abc import Sequence

import numpy as np

from captioning.metrics.bootstrap import Estimate, intervals

ORDERS = 4
NAMES = tuple(f"Bleu_{order}" for order in range(1, ORDERS + 1))

# What pycocoevalcap adds to numerators and to denominators.
_TINY, _SMALL = 1e-15, 1e-9


def bleu_scores(
    captions: Sequence[str], references: Sequence[Sequence[str]]
) -> list[tuple[Estimate, list[float]]]:
    """Return BLEU of each order 1-4: of the whole set, and of each caption.

    captions: N tokenised captions; references: N lists of them (Papineni et al. 2002; the closest
    reference's length, the shorter of two that are as close).
    """
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer

    scorer = BleuScorer(n=ORDERS)
    for caption, group in zip(captions, references):
        scorer += (caption, group)
    totals, each = scorer.compute_score(option="closest", verbose=0)
    bounds = intervals(_counts(scorer.ctest), bleu_of_sums)
    return [
        (Estimate(total, *ends, len(captions)), scores)
        for total, ends, scores in zip(totals, bounds, each)
    ]


def bleu_of_sums(sums: np.ndarray) -> np.ndarray:
    """Return (R, 4), BLEU 1-4 of R sums of counts.

    sums: (R, 10): clipped matches of 1 to 4 words, n-grams of 1 to 4 words, words of the captions,
    words of the closest references.
    """
    matches, ngrams = sums[:, :ORDERS], sums[:, ORDERS : 2 * ORDERS]
    brevity = (sums[:, -2:-1] + _TINY) / (sums[:, -1:] + _SMALL)  # (R, 1)
    precisions = np.cumprod((matches + _TINY) / (ngrams + _SMALL), axis=1)
    scores = precisions ** (1 / np.arange(1, ORDERS + 1))
    return scores * np.exp(1 - 1 / np.minimum(brevity, 1))


def _counts(sentences):
    """Return (N, 10), the columns of `bleu_of_sums`, of pycocoevalcap's counts a sentence."""
    return np.array(
        [
            [*counts["correct"], *counts["guess"], words, _closest(counts["reflen"], words)]
            for counts in sentences
            for words in [counts["testlen"]]
        ],
        dtype=float,
    )


def _closest(lengths, words):
    return min((abs(length - words), length) for length in lengths)[1]
