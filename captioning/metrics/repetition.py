"""Measures repetition within each caption. Words are PTB tokens, as in the evaluator `coco`.

rep_2, rep_3, rep_4  1 - distinct n-grams / n-grams of a caption, per cent; the mean over captions
                     with an n-gram (seq-rep-n of Welleck et al. 2020, section 6)
loops                percentage of captions in which a phrase of two or more words occurs twice in a
                     row, or a word three times
"""

from collections.abc import Sequence
from typing import Optional

from captioning.metrics.base import CaptionSet, Evaluator, Metric, Scores

SIZES = (2, 3, 4)


class Repetition(Evaluator):
    metrics = (
        *(Metric(f"rep_{n}", f"Rep-{n}", direction="lower") for n in SIZES),
        Metric(
            "loops",
            "Loops",
            direction="lower",
            meaning="captions that say a phrase twice in a row",
            unit="%",
        ),
    )

    def evaluate(self, captions: CaptionSet) -> Scores:
        texts, _, tokenizer = captions.tokenized
        sentences = [text.split() for text in texts]
        values = {f"rep_{n}": [repeated_share(words, n) for words in sentences] for n in SIZES}
        values["loops"] = [100.0 * has_loop(words) for words in sentences]
        return Scores.from_means(values, settings={"tokenizer": tokenizer})


def repeated_share(words: Sequence[str], n: int) -> Optional[float]:
    """Return the percentage of n-grams that repeat an earlier one; None without n-grams."""
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 100 * (1 - len(set(grams)) / len(grams)) if grams else None


def has_loop(words: Sequence[str]) -> bool:
    """Return whether a phrase of two or more words occurs twice in a row, or a word three times."""
    count = len(words)
    for n in range(1, count // 2 + 1):
        repeats = 0  # consecutive words that equal the word n positions before them
        for i in range(n, count):
            repeats = repeats + 1 if words[i] == words[i - n] else 0
            if repeats >= max(n, 2):
                return True
    return False
