"""How long captions are, and how many different words, pairs of words and captions a set has."""

from functools import cached_property

from captioning.data.caption_files import read_references
from captioning.metrics.bootstrap import Estimate, mean
from captioning.metrics.evaluator import CaptionSet, Evaluator, Result, Settings
from captioning.metrics.tokenizer import tokenize


def words(caption: str) -> int:
    """How many words a caption has, split at white space, punctuation and all."""
    return len(caption.split())


class Length(Evaluator):
    """cap_len: words a caption."""

    names = ("cap_len",)

    def evaluate(self, captions: CaptionSet) -> Result:
        lengths = [words(caption) for caption in captions.predictions.values()]
        return Result({"cap_len": mean(lengths)}, {"cap_len": lengths})


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
    def _seen(self) -> tuple[set[str], set[str]]:
        """The training captions as tokens, and their words; made when captions are scored."""
        texts = {text for group in tokenize(self.training)[0].values() for text in group}
        return texts, _words(texts)

    def evaluate(self, captions: CaptionSet) -> Result:
        texts, groups, tokenizer = captions.tokenized
        sentences = [text.split() for text in texts]
        total = sum(map(len, sentences))
        used, human = _words(texts), _words(text for group in groups for text in group)
        pairs = {pair for sentence in sentences for pair in zip(sentence, sentence[1:])}
        values = {
            "lex_div": len(used) / 1000,
            "ttr": _share(len(used), total),
            "distinct_1": _share(len(used), total),
            "distinct_2": _share(len(pairs), total),
            "distinct_captions": len(set(texts)) / len(sentences),
            "vocab_use": _share(len(used & human), len(human)),
        }
        settings = {"tokenizer": tokenizer}
        if self.training is not None:
            seen, vocabulary = self._seen
            values["seen_captions"] = sum(text in seen for text in texts) / len(texts)
            values["train_vocab_use"] = _share(len(used & vocabulary), len(vocabulary))
            settings["train_captions"] = str(self.settings.train_captions)
        estimates = {name: Estimate(v, None, None, len(texts)) for name, v in values.items()}
        return Result(estimates, settings=settings)


def _words(texts):
    return {word for text in texts for word in text.split()}


def _share(part, whole):
    return part / whole if whole else float("nan")
