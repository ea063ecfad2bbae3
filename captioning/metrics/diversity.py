"""Measures the length of captions, and the diversity of words and captions in a set."""

from collections.abc import Iterable
from functools import cached_property
from itertools import chain
from typing import Optional

from captioning.data.caption_files import read_references
from captioning.metrics.base import CaptionSet, Evaluator, Metric, Scores, option
from captioning.metrics.intervals import Estimate
from captioning.metrics.tokenizer import UNSPACED, characters, tokenize


def count_words(caption: str, language: str = "en") -> int:
    """Return the number of words of a caption, split at white space, or of its characters."""
    text = characters(caption) if language in UNSPACED else caption
    return len(text.split())


class Length(Evaluator):
    """cap_len: the mean number of words per caption."""

    metrics = (
        Metric(
            "cap_len",
            "Cap. Len.",
            decimals=2,
            direction="",
            meaning="words in a caption, on average",
            unit="words",
            report_title="Length",
            report_decimals=1,
        ),
    )

    def evaluate(self, captions: CaptionSet) -> Scores:
        lengths = [count_words(caption, captions.language) for caption in captions.texts]
        return Scores.from_means({"cap_len": lengths})


class Diversity(Evaluator):
    """Counts distinct words and captions in a set. Words are the tokens of the evaluator `coco`.

    - lex_div: the number of distinct words, in thousands
    - ttr: distinct words / words
    - distinct_1: distinct words / words, equal to ttr (Li et al. 2016)
    - distinct_2: distinct word pairs / words
    - distinct_captions: distinct captions / captions
    - vocab_use: share of the references' distinct words that the captions use
    - seen_captions: share of the captions that are in `train_captions`, if given
    - train_vocab_use: share of the distinct words of `train_captions` that the captions use

    Compare only sets with equal numbers of captions. There are no bootstrap intervals, because a
    resample repeats images and thus has fewer distinct words than a real set of the same size.
    """

    metrics = (
        Metric(
            "lex_div",
            "Lex. Div.",
            decimals=3,
            meaning="different words in all captions together",
            report_title="Distinct words",
            report_decimals=0,
            factor=1000,
        ),
        Metric("ttr", "TTR", decimals=3),
        Metric("distinct_1", "Dist-1", decimals=3),
        Metric("distinct_2", "Dist-2", decimals=3),
        Metric("distinct_captions", "Dist. Cap.", decimals=3),
        Metric("vocab_use", "Vocab. Use", decimals=3, needs_references=True),
        Metric("seen_captions", "Seen Cap.", decimals=3, direction="lower"),
        Metric("train_vocab_use", "Train Vocab. Use", decimals=3),
    )
    options = {
        "train_captions": option(
            Optional[str], None, "the captions that the captioner was trained on, for diversity"
        )
    }

    def prepare(self) -> None:
        self.training = [read_references(path) for path in self.files("train_captions")]
        if not self.training:
            self.metrics = self.metrics[:-2]

    @cached_property
    def _training_texts(self) -> tuple[set[str], set[str]]:
        """Tokenised training captions, and the distinct words in them."""
        tokens, _ = tokenize(self.training[0], self.settings.language)
        texts = set(chain.from_iterable(tokens.values()))
        return texts, _distinct_words(texts)

    def evaluate(self, captions: CaptionSet) -> Scores:
        texts, groups, tokenizer = captions.tokenized
        sentences = [text.split() for text in texts]
        total = sum(map(len, sentences))
        used = _distinct_words(texts)
        in_references = _distinct_words(chain.from_iterable(groups))
        pairs = {pair for sentence in sentences for pair in zip(sentence, sentence[1:])}
        values = {
            "lex_div": len(used) / 1000,
            "ttr": _share(len(used), total),
            "distinct_1": _share(len(used), total),
            "distinct_2": _share(len(pairs), total),
            "distinct_captions": len(set(texts)) / len(texts),
            "vocab_use": _share(len(used & in_references), len(in_references)),
        }
        settings = {"tokenizer": tokenizer}
        if self.training:
            known_texts, vocabulary = self._training_texts
            values["seen_captions"] = sum(text in known_texts for text in texts) / len(texts)
            values["train_vocab_use"] = _share(len(used & vocabulary), len(vocabulary))
            settings["train_captions"] = self.config.train_captions
        estimates = {name: Estimate(value, n=len(texts)) for name, value in values.items()}
        return Scores(estimates, settings=settings)


def _distinct_words(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in text.split()}


def _share(count: int, total: int) -> float:
    return count / total if total else float("nan")
