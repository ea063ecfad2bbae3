"""Measures the length of captions, and the diversity of words and captions in a set."""

from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Optional

from pydantic import Field

from captioning.data.caption_files import read_references
from captioning.metrics.bootstrap import Estimate
from captioning.metrics.evaluator import CaptionSet, Evaluator, Scores
from captioning.metrics.options import FILE, Options
from captioning.metrics.tokenizer import tokenize


def count_words(caption: str) -> int:
    """Return the number of words of a caption, split at white space."""
    return len(caption.split())


class Length(Evaluator):
    """cap_len: the mean number of words per caption."""

    name = "length"

    def evaluate(self, captions: CaptionSet) -> Scores:
        lengths = [count_words(caption) for caption in captions.texts]
        return Scores.from_means({"cap_len": lengths})


class DiversityOptions(Options):
    train_captions: Annotated[Optional[str], "scoring", FILE] = Field(
        None, description="the captions that the captioner was trained on, for diversity"
    )


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

    name = "diversity"
    Options = DiversityOptions

    def prepare(self) -> None:
        self.training = None
        if self.options.train_captions is None:
            self.metric_names = self.metric_names[:-2]
        else:
            self.training = read_references(self.options.train_captions)

    @cached_property
    def _seen(self) -> tuple[set[str], set[str]]:
        """Tokenised training captions, and the distinct words in them."""
        texts = {text for group in tokenize(self.training)[0].values() for text in group}
        return texts, _distinct_words(texts)

    def evaluate(self, captions: CaptionSet) -> Scores:
        texts, groups, tokenizer = captions.tokenized
        sentences = [text.split() for text in texts]
        total = sum(map(len, sentences))
        used = _distinct_words(texts)
        in_references = _distinct_words(text for group in groups for text in group)
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
        if self.training is not None:
            seen, vocabulary = self._seen
            values["seen_captions"] = len([text for text in texts if text in seen]) / len(texts)
            values["train_vocab_use"] = _share(len(used & vocabulary), len(vocabulary))
            settings["train_captions"] = self.options.train_captions
        estimates = {name: Estimate(value, n=len(texts)) for name, value in values.items()}
        return Scores(estimates, settings=settings)


def _distinct_words(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in text.split()}


def _share(count: int, total: int) -> float:
    return count / total if total else float("nan")
