"""How many different words, pairs of words and captions a set of captions has."""

from captioning.metrics.bootstrap import Estimate
from captioning.metrics.evaluator import CaptionSet, Evaluator, Result


class Diversity(Evaluator):
    """Distinct words and captions, of the tokens that coco counts; a property of the set.

    lex_div: distinct words in thousands; ttr: distinct words by words; distinct_1, distinct_2:
    distinct words and pairs of words by words (Li et al. 2016), the former being ttr by its other
    name; distinct_captions: distinct captions by captions. They fall, or lex_div grows, with the
    number of captions. No intervals: a resample repeats images, so it has fewer distinct words.
    """

    names = ("lex_div", "ttr", "distinct_1", "distinct_2", "distinct_captions")
    uses_references = False

    def evaluate(self, captions: CaptionSet) -> Result:
        tokenized = captions.tokenized
        sentences = [caption.split() for caption in tokenized.captions]
        total = sum(map(len, sentences))
        words = len({word for sentence in sentences for word in sentence})
        pairs = len({pair for sentence in sentences for pair in zip(sentence, sentence[1:])})
        values = {
            "lex_div": words / 1000,
            "ttr": words / total if total else float("nan"),
            "distinct_1": words / total if total else float("nan"),
            "distinct_2": pairs / total if total else float("nan"),
            "distinct_captions": len(set(tokenized.captions)) / len(sentences),
        }
        return Result(
            {name: Estimate(value, None, None, len(sentences)) for name, value in values.items()},
            settings={"tokenizer": tokenized.tokenizer},
        )
