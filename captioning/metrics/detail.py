"""How much detail captions have: nouns, adjectives, numbers and relations a caption.

TextBlob's tagger, which is pattern's (De Smedt & Daelemans 2012), comes with its lexicon and needs
no network. It uses a word's commonest part of speech and a few rules on its neighbours, so it takes
the verb of "a dog jumps" for a noun.
"""

import re
from collections import Counter

from captioning.metrics.bootstrap import mean
from captioning.metrics.evaluator import CaptionSet, Evaluator, Metric, Result
from captioning.runtime.errors import UserError

# Several words that act as one preposition.
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
# The tagger's class of prepositions includes conjunctions, and "of" seldom relates two things.
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
        if part == "TO" and not following.startswith("VB"):  # to the sea, and not to swim
            part = "IN"
        if part[:2] in _KINDS and (part != "IN" or _relates(word, next_word, following)):
            found[_KINDS[part[:2]]] += 1
    return found


def _relates(word: str, next_word: str, following: str) -> bool:
    """Whether an object follows the preposition: in "up for a ball" it does for "for" alone."""
    if word in _NO_RELATIONS:
        return False
    return next_word == "of" or (following[:1].isalpha() and following not in ("IN", "TO"))


class Detail(Evaluator):
    metrics = tuple(Metric(kind, kind.capitalize(), 2) for kind in _KINDS.values())

    def check(self) -> None:
        count("")

    def evaluate(self, captions: CaptionSet) -> Result:
        counts = [count(caption) for caption in captions.predictions.values()]
        values = {name: [each[name] for each in counts] for name in self.names}
        return Result({name: mean(each) for name, each in values.items()}, values)
