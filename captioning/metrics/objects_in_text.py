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

_ANIMALS = "bird cat dog horse sheep cow elephant bear zebra giraffe animal cub"
# {pair of words: the object that the pair names}. Without this, a single word of the pair would
# count as another object ("baby" as a person, "seat" as a chair), or as a second mention of the
# same object ("bow" as a tie).
_COMPOUNDS = {
    **{f"{age} {animal}": animal for animal in _ANIMALS.split() for age in ("baby", "adult")},
    **{f"passenger {vehicle}": vehicle for vehicle in ("jet", "train")},
    "bow tie": "tie",
    "toilet seat": "toilet",
    "wine glas": "wine glass",  # `singulars` turns "glass" into "glas"
}
_NON_OBJECTS = ("home plate", "train track")  # pairs that name no object, although "train" does

_SENTENCE_END = re.compile(r"(?<=[.?!])\s+")

# CHAIR uses the library pattern, version 3.6. TextBlob has the same rules, except that it makes
# "bus", "collie" and "doggie" of these words. This table has the singulars by pattern.
_AS_PUBLISHED = {"airbuses": "airbus", "collies": "collies", "doggies": "doggies"}


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
    objects = {}
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
        # As in the published code, " motor bike" in the file joins the words "motor bike". The pair
        # is then no known object, because the name of the object has a leading blank.
        pairs = {word.strip() for word in objects if len(word.split()) == 2}
        unchanged = {pair: pair for pair in (*pairs, *_NON_OBJECTS)}
        self.pairs = {**unchanged, **_COMPOUNDS}  # {pair of words: what replaces it}

    def mentions(self, caption: str) -> list[Mention]:
        """Return all mentions of objects in a caption, in order. Repeated mentions are kept."""
        words = []
        for sentence in _SENTENCE_END.split(caption.lower()):
            words += map(self.singular, self.tokenize(sentence))
        words = self._join_pairs(words)
        if "toilet" in words:  # a toilet's seat is not a chair
            words = [word for word in words if word != "seat"]
        return [Mention(word, self.objects[word]) for word in words if word in self.objects]

    def _join_pairs(self, words: list[str]) -> list[str]:
        """Return the words, with known pairs joined from left to right."""
        joined = []
        i = 0
        while i < len(words):
            pair = " ".join(words[i : i + 2])
            joined.append(self.pairs.get(pair, words[i]))
            i += 2 if pair in self.pairs else 1
        return joined


def singulars() -> Callable[[str], str]:
    """Return a function from a word to its singular by the rules of the library pattern.

    The rules also shorten some words that are singular already: "glass" becomes "glas", and "bus"
    becomes "bu", which names no object.

    Raises UserError without TextBlob.
    """
    try:
        from textblob.en.inflect import singularize
    except ImportError:
        raise UserError("chair needs TextBlob: pip install textblob") from None
    return cache(lambda word: singularize(word, custom=_AS_PUBLISHED))
