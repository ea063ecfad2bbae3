"""How detailed captions are: nouns, adjectives, numbers and relations per caption.

The tagger is TextBlob's, taken from pattern (De Smedt & Daelemans 2012). It has its own lexicon and
needs no network. It gives a word its most common part of speech and applies a few rules to the
neighbouring words. Thus it mistakes the verb of "a dog jumps" for a noun.
"""

import re
from collections import Counter

from captioning.metrics.evaluator import CaptionSet, Evaluator, Scores
from captioning.runtime.errors import UserError

# Phrases that act as one preposition.
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
# The tagger's class of prepositions includes conjunctions. "of" seldom relates two objects.
_NO_RELATIONS = {"of", "while", "as", "that", "because", "if", "whether", "than", "although"}
_NO_RELATIONS |= {"though", "since", "so"}
_KINDS = {"NN": "nouns", "JJ": "adjectives", "CD": "numbers", "IN": "relations"}


def count(caption: str) -> Counter[str]:
    """The number of words of each kind in a caption. Raises UserError without TextBlob."""
    try:
        from textblob.en import tag
    except ImportError:
        raise UserError("detail needs TextBlob: pip install textblob") from None
    text = _COMPOUND.sub(lambda found: _COMPOUNDS[" ".join(found[1].split())], caption.lower())
    tagged = tag(text)
    found: Counter[str] = Counter()
    for (word, part), (next_word, following) in zip(tagged, [*tagged[1:], ("", "")]):
        if part == "TO" and not following.startswith("VB"):  # "to the sea", but not "to swim"
            part = "IN"
        if part[:2] in _KINDS and (part != "IN" or _relates(word, next_word, following)):
            found[_KINDS[part[:2]]] += 1
    return found


def _relates(word: str, next_word: str, following: str) -> bool:
    """Whether an object follows the preposition. In "up for a ball" this holds only for "for"."""
    if word in _NO_RELATIONS:
        return False
    return next_word == "of" or (following[:1].isalpha() and following not in ("IN", "TO"))


class Detail(Evaluator):
    name = "detail"

    def check(self) -> None:
        count("")

    def evaluate(self, captions: CaptionSet) -> Scores:
        counts = [count(caption) for caption in captions.predictions.values()]
        values = {name: [each[name] for each in counts] for name in self.names}
        return Scores.of_means(values)
