"""How many different words, pairs of words and captions a set of captions has."""

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from captioning.data.caption_files import read_references
from captioning.metrics.bootstrap import Estimate
from captioning.metrics.evaluator import CaptionSet, Evaluator, Result, Settings
from captioning.metrics.tokenizer import tokenize


class _Training(NamedTuple):
    """The distinct captions that a captioner was trained on, as tokens, and their words."""

    captions: frozenset[str]
    words: frozenset[str]


class Diversity(Evaluator):
    """Distinct words and captions, of the tokens that coco counts; a property of the set.

    lex_div: distinct words in thousands; ttr: distinct words by words; distinct_1, distinct_2:
    distinct words and pairs of words by words (Li et al. 2016), the former being ttr by its other
    name; distinct_captions: distinct captions by captions; vocab_use: the share of the references'
    distinct words that the captions use. With `train_captions`: seen_captions, the share of the
    captions that are one of these, and train_vocab_use, the share of their distinct words. Shares
    fall, or numbers of words grow, with the number of captions. No intervals: a resample repeats
    images, so it has fewer distinct words.
    """

    names = ("lex_div", "ttr", "distinct_1", "distinct_2", "distinct_captions", "vocab_use")
    reference_metrics = ("vocab_use",)

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.training = None
        if settings.train_captions is not None:
            self.names = (*type(self).names, "seen_captions", "train_vocab_use")
            self.training = read_references(settings.train_captions)

    @cached_property
    def _seen(self) -> _Training:
        """Tokens of the training captions, made when the first captions are scored."""
        tokenized, _ = tokenize(self.training)
        captions = frozenset(text for group in tokenized.values() for text in group)
        return _Training(captions, _words([captions]))

    def evaluate(self, captions: CaptionSet) -> Result:
        tokenized = captions.tokenized
        sentences = [caption.split() for caption in tokenized.captions]
        total = sum(map(len, sentences))
        words = _words([tokenized.captions])
        pairs = len({pair for sentence in sentences for pair in zip(sentence, sentence[1:])})
        human = _words(tokenized.groups)
        values = {
            "lex_div": len(words) / 1000,
            "ttr": _share(len(words), total),
            "distinct_1": _share(len(words), total),
            "distinct_2": _share(pairs, total),
            "distinct_captions": len(set(tokenized.captions)) / len(sentences),
            "vocab_use": _share(len(words & human), len(human)),
        }
        settings = {"tokenizer": tokenized.tokenizer}
        if self.training is not None:
            known = sum(caption in self._seen.captions for caption in tokenized.captions)
            values["seen_captions"] = known / len(sentences)
            vocabulary = self._seen.words
            values["train_vocab_use"] = _share(len(words & vocabulary), len(vocabulary))
            settings["train_captions"] = str(self.settings.train_captions)
        return Result(
            {name: Estimate(value, None, None, len(sentences)) for name, value in values.items()},
            settings=settings,
        )


def _words(groups: Iterable[Iterable[str]]) -> frozenset[str]:
    return frozenset(word for group in groups for text in group for word in text.split())


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
