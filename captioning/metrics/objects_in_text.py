"""The COCO objects that a caption names, as CHAIR reads them (Rohrbach et al. 2018).

github.com/LisaAnne/Hallucination, utils/chair.py, with the addition of "train track" of
github.com/Maxlinn/CHAIR-metric-standalone.
"""

import re
from functools import cache, cached_property
from pathlib import Path
from typing import Callable, NamedTuple

from captioning.files.reading import read_text
from captioning.runtime.errors import UserError

_ANIMALS = (
    *("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"),
    *("animal", "cub"),
)
# Word pairs that mean one object, unlike their second word alone.
_COMPOUNDS = {
    **{f"{age} {animal}": animal for animal in _ANIMALS for age in ("baby", "adult")},
    **{f"passenger {vehicle}": vehicle for vehicle in ("jet", "train")},
    "bow tie": "tie",
    "toilet seat": "toilet",
    "wine glas": "wine glass",  # the singular by `by_rules`
}
_NON_OBJECTS = ("home plate", "train track")  # pairs whose single words would be objects

_SENTENCE_END = re.compile(r"(?<=[.?!])\s+")

# TextBlob has the rules of the library `pattern`, 3.6 of which CHAIR names, with these corrected.
_AS_PUBLISHED = {"airbuses": "airbus", "collies": "collies", "doggies": "doggies"}
# Here WordNet's shortest lemma, a work force and a duct, is not what captions mean.
_NOT_SHORTEST = {"men": "man", "vases": "vase"}


class Mention(NamedTuple):
    """word: as found, in the singular; object: the name of its category."""

    word: str
    object: str


def read_synonyms(path: Path) -> dict[str, str]:
    """Return {word or words: name of the object} from a file with an object a line.

    A line has the name and its synonyms, separated by ", ". Blanks and capitals within a synonym
    stay, and match no caption, as in the published code. Raises UserError.
    """
    objects: dict[str, str] = {}
    for line in read_text(path).splitlines():
        names = line.strip().split(", ")
        objects.update(dict.fromkeys(names, names[0]))
    objects.pop("", None)
    if not any(word != name for word, name in objects.items()):
        raise UserError(
            f"{path}: no synonyms: expected an object a line, its name and words that stand for "
            "it, separated by comma and blank"
        )
    return objects


class ObjectReader:
    """Finds the objects that captions name.

    objects: from `read_synonyms`; singular: maps a lower-case word to its singular.
    """

    def __init__(self, objects: dict[str, str], singular: Callable[[str], str]):
        self.objects, self.singular = objects, singular
        # As published: a name with odd blanks is not found, but its two words are still joined.
        pairs = {word.strip() for word in objects if len(word.split()) == 2}
        self.pairs = {**{pair: pair for pair in (*pairs, *_NON_OBJECTS)}, **_COMPOUNDS}

    @cached_property
    def _tokenize(self):
        from nltk.tokenize import NLTKWordTokenizer

        return NLTKWordTokenizer().tokenize

    def mentions(self, caption: str) -> list[Mention]:
        """Return the objects of a caption in its order, each as often as it is named."""
        words = self._joined(
            [
                self.singular(word)
                for sentence in _SENTENCE_END.split(caption.lower())
                for word in self._tokenize(sentence)
            ]
        )
        if "toilet" in words:  # the seat of a toilet is no chair
            words = [word for word in words if word != "seat"]
        return [Mention(word, self.objects[word]) for word in words if word in self.objects]

    def _joined(self, words: list[str]) -> list[str]:
        """The words with known pairs joined, from left to right."""
        joined = []
        rest = iter(range(len(words)))
        for i in rest:
            pair = " ".join(words[i : i + 2])
            joined.append(self.pairs.get(pair, words[i]))
            if pair in self.pairs:
                next(rest)
        return joined


class Singular(NamedTuple):
    """what: the method's name, recorded with the scores; of: a lower-case word to its singular."""

    what: str
    of: Callable[[str], str]


def by_rules() -> Singular:
    """By pattern's rules, which know no words: "bus" becomes "bu", "glass" becomes "glas".

    Raises UserError without TextBlob.
    """
    try:
        from textblob.en.inflect import singularize
    except ImportError:
        raise UserError("chair needs TextBlob: pip install textblob") from None
    return Singular("pattern's rules", cache(lambda word: singularize(word, custom=_AS_PUBLISHED)))


def by_wordnet() -> Singular:
    """WordNet's shortest lemma of the word as a noun; by rules for words that it does not have.

    Raises UserError without TextBlob, or nltk's data.
    """
    rules = by_rules()
    from nltk.corpus import wordnet  # TextBlob needs it as well
    from nltk.stem import WordNetLemmatizer

    lemmatize = WordNetLemmatizer().lemmatize
    try:
        lemmatize("dogs")
    except (LookupError, OSError) as error:
        reason = "are damaged" if isinstance(error, OSError) else "are not there"
        raise UserError(
            f"singular: wordnet: nltk's data {reason}: run python -m nltk.downloader wordnet, or "
            "put corpora/wordnet into a folder that NLTK_DATA names"
        ) from None

    @cache
    def singular(word: str) -> str:
        if word in _NOT_SHORTEST:
            return _NOT_SHORTEST[word]
        return lemmatize(word) if wordnet.morphy(word, "n") else rules.of(word)

    return Singular("WordNet's lemmas", singular)


SINGULARS = {"pattern": by_rules, "wordnet": by_wordnet}
