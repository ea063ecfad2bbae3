"""Measures how detailed captions are: nouns, adjectives, numbers and relations per caption.

The part-of-speech tagger is from TextBlob, which took it from pattern (De Smedt & Daelemans 2012).
TextBlob includes the tagger's lexicon, so that no download is needed. The tagger gives a word its
most common part of speech, which a few rules change according to the neighbouring words. Therefore
it mistakes the verb of "a dog jumps" for a noun.
"""

import re
from collections import Counter

from captioning.metrics.base import CaptionSet, Evaluator, Metric, Scores
from captioning.runtime.errors import UserError

_KINDS = {"NN": "nouns", "JJ": "adjectives", "CD": "numbers", "IN": "relations"}
# {phrase that acts as one preposition: single preposition that is counted instead}
_COMPOUNDS = {
    "next to": "beside",
    "close to": "near",
    "in front of": "behind",
    "in back of": "behind",
    "on top of": "upon",
    "in between": "between",
    "inside of": "inside",
    "outside of": "outside",
}
_COMPOUND = re.compile(rf"\b({'|'.join(_COMPOUNDS)})\b".replace(" ", r"\s+"))
# Words that the tagger may label IN, but that are not counted as relations: conjunctions, and "of",
# which seldom relates objects.
_NO_RELATIONS = {
    *("of", "while", "as", "that", "because", "if", "whether", "than"),
    *("although", "though", "since", "so"),
}


class Detail(Evaluator):
    """nouns, adjectives, numbers, relations: how many a caption has, on average."""

    metrics = tuple(
        Metric(kind, kind.capitalize(), decimals=2, direction="", only_english=True)
        for kind in _KINDS.values()
    )

    def check_requirements(self) -> None:
        count_words_by_kind("")

    def evaluate(self, captions: CaptionSet) -> Scores:
        counts = [count_words_by_kind(caption) for caption in captions.texts]
        return Scores.from_means(
            {name: [each[name] for each in counts] for name in self.metric_names}
        )


def count_words_by_kind(caption: str) -> Counter[str]:
    """Return {kind: number of words} of a caption. Raises UserError without TextBlob."""
    try:
        from textblob.en import tag
    except ImportError:
        raise UserError("detail needs TextBlob: pip install textblob") from None
    text = _COMPOUND.sub(lambda match: _COMPOUNDS[" ".join(match[1].split())], caption.lower())
    tagged = tag(text)
    counts = Counter()
    # pos: part of speech, a tag of the Penn Treebank
    for (word, pos), (next_word, next_pos) in zip(tagged, [*tagged[1:], ("", "")]):
        if pos == "TO" and not next_pos.startswith("VB"):  # "to the sea", but not "to swim"
            pos = "IN"
        if pos == "IN" and not _relates(word, next_word, next_pos):
            continue
        if pos[:2] in _KINDS:
            counts[_KINDS[pos[:2]]] += 1
    return counts


def _relates(word: str, next_word: str, next_pos: str) -> bool:
    """Return whether an object follows a preposition. In "up for a ball" this is so only for "for".

    next_pos: the part of speech of the next word.
    """
    if word in _NO_RELATIONS:
        return False
    return next_word == "of" or (next_pos[:1].isalpha() and next_pos not in ("IN", "TO"))
