"""The COCO objects that a caption names, as CHAIR reads them (Rohrbach et al. 2018).

github.com/LisaAnne/Hallucination, utils/chair.py, with the addition of "train track" of
github.com/Maxlinn/CHAIR-metric-standalone. The words of objects are those of `synonyms.txt`, a file
of theirs.
"""

import re
from functools import cached_property
from pathlib import Path
from typing import Callable, NamedTuple

from captioning.files.reading import read_text
from captioning.runtime.errors import UserError

_ANIMALS = (
    *("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"),
    *("animal", "cub"),
)
# Two words that mean the second, or the first, and not what the other one means alone.
_MEANT = {
    **{f"{age} {animal}": animal for animal in _ANIMALS for age in ("baby", "adult")},
    **{f"passenger {vehicle}": vehicle for vehicle in ("jet", "train")},
    "bow tie": "tie",
    "toilet seat": "toilet",
    "wine glas": "wine glass",  # as the rules of `singular.by_rules` have it
}
_NO_OBJECTS = ("home plate", "train track")  # their words alone would be some

_SENTENCE_END = re.compile(r"(?<=[.?!])\s+")


class Mention(NamedTuple):
    """word: as found, in the singular; object: the name of its category."""

    word: str
    object: str


def read_synonyms(path: Path) -> dict[str, str]:
    """Return {word or words: name of the object}, of a file with an object a line.

    A line has the name and what else stands for it, separated by ", ". Blanks and capitals within
    it stay, and are found in no caption, as in the published code. Raises UserError.
    """
    objects: dict[str, str] = {}
    for line in read_text(path).splitlines():
        name, *others = line.strip().split(", ")
        objects.update(dict.fromkeys([name, *others], name))
    objects.pop("", None)
    if not any(word != name for word, name in objects.items()):
        raise UserError(
            f"{path}: no synonyms: expected an object a line, its name and words that stand for "
            "it, separated by comma and blank"
        )
    return objects


class ObjectReader:
    """Captions to the objects that they name.

    objects: from `read_synonyms`; singular: a lower-case word to its singular.
    """

    def __init__(self, objects: dict[str, str], singular: Callable[[str], str]):
        self.objects, self.singular = objects, singular
        # A name that the published code never finds still takes its two words.
        pairs = {word.strip() for word in objects if len(word.split()) == 2}
        self.pairs = {**{pair: pair for pair in (*pairs, *_NO_OBJECTS)}, **_MEANT}

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
        """The words, those that are one thing together as one, from left to right."""
        joined = []
        rest = iter(range(len(words)))
        for i in rest:
            pair = " ".join(words[i : i + 2])
            joined.append(self.pairs.get(pair, words[i]))
            if pair in self.pairs:
                next(rest)
        return joined
