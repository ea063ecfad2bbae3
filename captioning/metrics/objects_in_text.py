"""Finds the COCO objects that a caption names, as CHAIR does (Rohrbach et al. 2018).

Follows utils/chair.py of github.com/LisaAnne/Hallucination. The exception "train track" is from
github.com/Maxlinn/CHAIR-metric-standalone.
"""

import re
from functools import cache
from pathlib import Path
from typing import Callable, NamedTuple

from captioning.files.reading import read_text
from captioning.runtime.errors import UserError

_ANIMALS = (
    *("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"),
    *("animal", "cub"),
)
# Word pairs with the object that they name. Counted alone, one of the words would name another
# object ("baby" a person, "seat" a chair) or the same one again ("bow" a tie).
_COMPOUNDS = {
    **{f"{age} {animal}": animal for animal in _ANIMALS for age in ("baby", "adult")},
    **{f"passenger {vehicle}": vehicle for vehicle in ("jet", "train")},
    "bow tie": "tie",
    "toilet seat": "toilet",
    "wine glas": "wine glass",  # `by_rules` turns "glass" into "glas"
}
_NON_OBJECTS = ("home plate", "train track")  # no objects, although a "train" is one

_SENTENCE_END = re.compile(r"(?<=[.?!])\s+")

# CHAIR uses the library pattern, version 3.6. TextBlob has the same rules, except for these words:
# it has changed their singulars to "bus", "collie" and "doggie".
_AS_PUBLISHED = {"airbuses": "airbus", "collies": "collies", "doggies": "doggies"}
# nltk would return the lemmas "men" (a work force) and "vas" (a duct), which captions do not mean.
_WORDNET_EXCEPTIONS = {"men": "man", "vases": "vase"}


class Mention(NamedTuple):
    """A mention of an object. word: the singular of the word found. object: its category."""

    word: str
    object: str


def read_synonyms(path: Path) -> dict[str, str]:
    """Return {synonym: name of the object} from a file with one object per line.

    A line has the name and its synonyms, separated by ", ". As in the published code, a synonym
    with an extra blank or a capital, such as " motor bike", is kept but matches no caption. Raises
    UserError.
    """
    objects: dict[str, str] = {}
    for line in read_text(path).splitlines():
        names = line.strip().split(", ")
        objects.update(dict.fromkeys(names, names[0]))
    objects.pop("", None)
    if not any(word != name for word, name in objects.items()):
        raise UserError(
            f"{path}: no synonyms: expected one object per line, its name and its synonyms, "
            "separated by comma and blank"
        )
    return objects


class ObjectReader:
    """Finds the objects that captions name.

    objects: from `read_synonyms`. singular: maps a lower-case word to its singular.
    """

    def __init__(self, objects: dict[str, str], singular: Callable[[str], str]):
        from nltk.tokenize import NLTKWordTokenizer  # a dependency of TextBlob

        self.objects, self.singular = objects, singular
        self.tokenize = NLTKWordTokenizer().tokenize
        # As published: " motor bike" in the file joins "motor bike", which is then no known object.
        pairs = {word.strip() for word in objects if len(word.split()) == 2}
        self.pairs = {**{pair: pair for pair in (*pairs, *_NON_OBJECTS)}, **_COMPOUNDS}

    def mentions(self, caption: str) -> list[Mention]:
        """Return all mentions of objects in a caption, in order. Repeated mentions are kept."""
        words = self._joined(
            [
                self.singular(word)
                for sentence in _SENTENCE_END.split(caption.lower())
                for word in self.tokenize(sentence)
            ]
        )
        if "toilet" in words:  # a toilet's seat is not a chair
            words = [word for word in words if word != "seat"]
        return [Mention(word, self.objects[word]) for word in words if word in self.objects]

    def _joined(self, words: list[str]) -> list[str]:
        """The words, with known pairs joined from left to right."""
        joined = []
        rest = iter(range(len(words)))
        for i in rest:
            pair = " ".join(words[i : i + 2])
            joined.append(self.pairs.get(pair, words[i]))
            if pair in self.pairs:
                next(rest)
        return joined


def by_rules() -> Callable[[str], str]:
    """Return a function from a word to its singular by pattern's rules.

    The rules also shorten words that are singular: "glass" becomes "glas", and "bus" becomes "bu",
    which names no object.

    Raises UserError without TextBlob.
    """
    try:
        from textblob.en.inflect import singularize
    except ImportError:
        raise UserError("chair needs TextBlob: pip install textblob") from None
    return cache(lambda word: singularize(word, custom=_AS_PUBLISHED))


def by_wordnet() -> Callable[[str], str]:
    """Like `by_rules`, but return WordNet's shortest noun lemma. Other words follow the rules.

    Raises UserError without TextBlob or without nltk's data.
    """
    rules = by_rules()
    from nltk.corpus import wordnet  # a dependency of TextBlob
    from nltk.stem import WordNetLemmatizer

    lemmatize = WordNetLemmatizer().lemmatize
    try:
        lemmatize("dogs")
    except (LookupError, OSError) as error:
        reason = "are damaged" if isinstance(error, OSError) else "are missing"
        raise UserError(
            f"singular: wordnet: nltk's data {reason}: run python -m nltk.downloader wordnet, or "
            "put corpora/wordnet into a folder and set NLTK_DATA to it"
        ) from None

    @cache
    def singular(word: str) -> str:
        if word in _WORDNET_EXCEPTIONS:
            return _WORDNET_EXCEPTIONS[word]
        return lemmatize(word) if wordnet.morphy(word, "n") else rules(word)

    return singular


SINGULARS = {"pattern": by_rules, "wordnet": by_wordnet}
SINGULAR_TITLES = {"pattern": "pattern's rules", "wordnet": "WordNet's lemmas"}  # in score files
