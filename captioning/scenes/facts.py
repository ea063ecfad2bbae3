"""The facts that a caption states, and which of them are true of a scene.

A caption is read word by word, so that a captioner's broken grammar can be scored as well. Each
noun is a mention of one object; adjectives belong to the noun after them, places to the one before.
A specific word states more than a general one: "crimson" says red and dark, "tiny" small and tiny.
Words that state nothing ("a", "and", "with") are passed over, and a fact said twice counts once.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple, Optional

from captioning.scenes.annotators import OBJECT_NOUNS, SYNONYMS
from captioning.scenes.world import COUNTS, GROUNDS, RELATIONS, SHADES, SHAPES, SIZES, Scene


def _named(words) -> Iterator[tuple[str, str]]:
    """Each word with its synonyms, as (what is written, what is meant)."""
    return ((name, word) for word in words for name in SYNONYMS.get(word, (word,)))


NOUNS = {**{noun: "object" for noun in OBJECT_NOUNS}, **dict(_named(SHAPES))}
ADJECTIVES: dict[str, tuple[str, ...]] = {
    **SHADES,
    **{word: (word,) for properties in SHADES.values() for word in properties},
    **{name: SIZES[size] for name, size in _named(SIZES)},
}
PLACES = {
    **{word: word for word in ("left", "right", "top", "bottom")},
    **{name: "middle" for name in SYNONYMS["middle"]},
    "upper": "top",
    "lower": "bottom",
}
OF_SCENE = {**dict(_named(GROUNDS)), **{count: count for count in COUNTS}}


class Fact(NamedTuple):
    """What one word states: `what` of mention `subject`, or of the scene (None).

    A relation has another mention for its `other`.
    """

    what: str
    subject: Optional[int]
    other: Optional[int] = None


class Statement(NamedTuple):
    """words: the caption's, each with the facts that it states; mentions: how many there are."""

    words: tuple[tuple[str, tuple[Fact, ...]], ...]
    mentions: int

    def facts(self) -> frozenset[Fact]:
        return frozenset(fact for _, facts in self.words for fact in facts)


def read_caption(caption: str) -> Statement:
    """The facts that each word of a caption states."""
    words = caption.split()
    stated: list[tuple[Fact, ...]] = []
    noun = -1  # the last mention; adjectives belong to the next one
    open_adjective = False
    for i, word in enumerate(words):
        key, facts = word.strip(".,").lower(), ()
        relation = _relation(key, words[i + 1 : i + 2])
        if key in NOUNS:
            noun, open_adjective = noun + 1, False
            facts = (Fact(NOUNS[key], noun),)
        elif key in ADJECTIVES:
            open_adjective = True
            facts = tuple(Fact(what, noun + 1) for what in ADJECTIVES[key])
        elif relation is not None and noun >= 0:
            facts = (Fact(relation, noun, noun + 1),)
        elif key in PLACES and relation is None and noun >= 0:
            facts = (Fact(PLACES[key], noun),)
        elif key in OF_SCENE:
            facts = (Fact(OF_SCENE[key], None),)
        stated.append(facts)
    mentions = noun + 1 + open_adjective
    # A relation to nothing, at a caption's end, states nothing.
    whole = [
        tuple(fact for fact in facts if fact.other is None or fact.other < mentions)
        for facts in stated
    ]
    return Statement(tuple(zip(words, whole)), mentions)


def _relation(word: str, following: list[str]) -> Optional[str]:
    if word in ("above", "below", "near"):
        return word
    if word == "next":
        return "near"
    if word in ("left", "right") and following == ["of"]:
        return f"{word} of"
    return None


def true_facts(statement: Statement, scene: Scene) -> frozenset[Fact]:
    """Those of the stated facts that hold, mentions taken for the things that suit them best.

    No two mentions are the same thing: of three mentions in a scene with two things, one is wrong
    altogether.
    """
    facts = statement.facts()
    best: frozenset[Fact] = frozenset()
    for things in _assignments(_distinct_mentions(statement, scene), len(scene.things)):
        true = frozenset(fact for fact in facts if _holds(fact, things, scene))
        if len(true) > len(best):
            best = true
    return best


def _distinct_mentions(statement: Statement, scene: Scene) -> list[int]:
    """The mentions that can matter, since something of them can be true.

    Of those of which the same is said there are no more than things: a captioner that repeats
    itself would cost the cube of its mentions.
    """
    possible = frozenset().union(*(thing.facts() for thing in scene.things))
    said: dict[int, list[tuple]] = {mention: [] for mention in range(statement.mentions)}
    for fact in statement.facts():
        if fact.subject is not None:
            said[fact.subject].append((fact.what, fact.other))
            if fact.other is not None:
                said[fact.other].append((fact.what, fact.subject))
    alike = Counter()
    kept = []
    for mention, what in said.items():
        key = frozenset(what)
        alike[key] += 1
        can_be_true = any(name in possible or other is not None for name, other in key)
        if can_be_true and alike[key] <= len(scene.things):
            kept.append(mention)
    return kept


def _assignments(mentions: list[int], things: int) -> Iterator[dict[int, int]]:
    """Every way to take mentions for things, {mention: thing}, as many of them as there can be."""
    if len(mentions) <= things:
        for chosen in permutations(range(things), len(mentions)):
            yield dict(zip(mentions, chosen))
    else:
        for named in permutations(mentions, things):
            yield {mention: thing for thing, mention in enumerate(named)}


def _holds(fact: Fact, things: dict[int, int], scene: Scene) -> bool:
    if fact.subject is None:
        return fact.what in scene.facts()
    subject = things.get(fact.subject)
    if subject is None:
        return False
    if fact.other is None:
        return fact.what in scene.things[subject].facts()
    other = things.get(fact.other)
    return other is not None and RELATIONS[fact.what](scene.things[subject], scene.things[other])


def mark(caption: str, scene: Scene) -> list[tuple[str, Optional[bool]]]:
    """Each word of the caption with whether what it states is true, None if it states nothing."""
    statement = read_caption(caption)
    true = true_facts(statement, scene)
    return [
        (word, all(fact in true for fact in facts) if facts else None)
        for word, facts in statement.words
    ]
