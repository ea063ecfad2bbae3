"""Captions of a scene by simulated annotators, and the facts that a caption states, true or not.

A caption is read word by word, so that a captioner's broken grammar can be scored as well. Each
noun mentions one object; adjectives belong to the noun after them, places to the one before. A
specific word states more than a general one: "crimson" states red and dark, "tiny" small and tiny.
Words that state nothing ("a", "and", "with") are skipped, and a repeated fact counts once.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import NamedTuple, Optional

from captioning.scenes.world import COUNTS, GROUNDS, RELATIONS, SHADES, SHAPES, SIZES, Scene, Thing

# The detail of each of the five, from 0 to 1.
ANNOTATORS = (0.0, 0.1, 0.2, 0.4, 0.9)

MOST_WORDS = 9  # after them no further thing is mentioned

OBJECT_NOUNS = ("shape", "thing", "object")
SYNONYMS = {
    "circle": ("circle", "disc"),
    "square": ("square", "block"),
    "small": ("small", "little"),
    "large": ("large", "big"),
    "sand": ("sand", "beach"),
    "grass": ("grass", "lawn"),
    "stone": ("stone", "rock"),
    "near": ("next to", "near"),
    "left of": ("to the left of",),
    "right of": ("to the right of",),
    "middle": ("middle", "centre"),
}


def describe(scene: Scene, detail: float, rng: random.Random) -> str:
    """Return one true caption by an annotator of this detail (0 to 1).

    Detail decides how many things are mentioned, with which properties, and how specific the words
    are: "shape" or "circle", "red" or "crimson", "on the left" or "in the upper left corner".
    """

    def chance(at_least: float, at_most: float) -> bool:
        return rng.random() < at_least + (at_most - at_least) * detail

    things = scene.things
    in_short = len(things) > 1 and not chance(0.25, 0.97)
    if in_short and rng.random() < 0.5:
        text = f"{COUNTS[len(things) - 1]} {rng.choice(OBJECT_NOUNS)}s"
    else:
        text = _phrase(things[0], True, chance, rng)
        for before, thing in zip(things, things[1:] if not in_short else ()):
            if len(text.split()) > MOST_WORDS:
                break
            joint = _true_relation(before, thing, rng) if chance(0.05, 0.6) else None
            text += f" {joint or 'and'} {_phrase(thing, joint is None, chance, rng)}"
    if chance(0.05, 0.6):
        text += f" on the {_synonym(scene.ground, rng)}"
    return text


def describe_all(scene: Scene, rng: random.Random) -> list[str]:
    """Return one caption by each annotator."""
    return [describe(scene, detail, rng) for detail in ANNOTATORS]


def _phrase(thing: Thing, placed: bool, chance, rng: random.Random) -> str:
    words = [*_properties(thing, chance, rng)]
    words.append(_synonym(thing.shape, rng) if chance(0.5, 0.97) else rng.choice(OBJECT_NOUNS))
    article = "an" if words[0][0] in "aeiou" else "a"
    place = f" {_place(thing, chance, rng)}" if placed and chance(0.1, 0.75) else ""
    return f"{article} {' '.join(words)}{place}"


def _properties(thing: Thing, chance, rng: random.Random) -> Iterator[str]:
    if chance(0.03, 0.65):
        general, *extreme = SIZES[thing.size]
        yield extreme[0] if extreme and chance(0.2, 0.9) else _synonym(general, rng)
    if chance(0.3, 0.93):
        colour, brightness = SHADES[thing.shade]
        if chance(0.1, 0.75):
            yield thing.shade
        else:
            if chance(0.05, 0.4):
                yield brightness
            yield colour


def _place(thing: Thing, chance, rng: random.Random) -> str:
    places = list(thing.place())
    if places == ["middle"]:
        return f"in the {_synonym('middle', rng)}"
    if len(places) == 2 and chance(0.2, 0.9):
        column, row = places
        return f"in the {'upper' if row == 'top' else 'lower'} {column} corner"
    place = rng.choice(places)
    return f"{'on' if place in ('left', 'right') else 'at'} the {place}"


def _true_relation(a: Thing, b: Thing, rng: random.Random) -> str:
    true = [name for name, holds in RELATIONS.items() if holds(a, b)]
    return _synonym(rng.choice(true), rng)


def _synonym(word: str, rng: random.Random) -> str:
    return rng.choice(SYNONYMS.get(word, (word,)))


def _named(words) -> Iterator[tuple[str, str]]:
    """Yield (synonym, word) for each synonym of each word."""
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
    """What one word states: `what` about mention `subject`, or about the scene (None).

    A relation is to the mention `other`.
    """

    what: str
    subject: Optional[int]
    other: Optional[int] = None


class Statement(NamedTuple):
    """words: those of a caption, each with the facts that it states. mentions: their number."""

    words: tuple[tuple[str, tuple[Fact, ...]], ...]
    mentions: int

    def facts(self) -> frozenset[Fact]:
        return frozenset(fact for _, facts in self.words for fact in facts)


def read_caption(caption: str) -> Statement:
    """Return the facts that each word of a caption states."""
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
    # A relation at a caption's end has no other mention, and states nothing.
    whole = [
        tuple(fact for fact in facts if fact.other is None or fact.other < mentions)
        for facts in stated
    ]
    return Statement(tuple(zip(words, whole)), mentions)


def _relation(word: str, following: list[str]) -> Optional[str]:
    if word in ("left", "right"):
        return f"{word} of" if following == ["of"] else None
    return {"above": "above", "below": "below", "near": "near", "next": "near"}.get(word)


def true_facts(statement: Statement, scene: Scene) -> frozenset[Fact]:
    """Return the stated facts that hold, with mentions matched to things as well as possible.

    Each mention is another thing: of three mentions in a scene with two things, one is wrong.
    """
    facts = statement.facts()
    matches = _matches(_distinct_mentions(statement, scene), len(scene.things))
    return max(
        (frozenset(fact for fact in facts if _holds(fact, match, scene)) for match in matches),
        key=len,
    )


def most_true(facts: Iterable[Fact], scene: Scene) -> int:
    """Return an upper bound of `true_facts` that is fast: any thing may be any mention."""
    possible = _of_things(scene)
    return sum(
        fact.what in (scene.facts() if fact.subject is None else possible) or fact.other is not None
        for fact in facts
    )


def _of_things(scene: Scene) -> frozenset[str]:
    return frozenset().union(*(thing.facts() for thing in scene.things))


def _distinct_mentions(statement: Statement, scene: Scene) -> list[int]:
    """Return the mentions about which something can be true.

    Of mentions with the same facts only as many are kept as there are things. Otherwise the cost
    of a captioner that repeats itself would be the cube of its mentions.
    """
    possible = _of_things(scene)
    stated: dict[int, list[tuple]] = {mention: [] for mention in range(statement.mentions)}
    for fact in statement.facts():
        if fact.subject is not None:
            stated[fact.subject].append((fact.what, fact.other))
            if fact.other is not None:
                stated[fact.other].append((fact.what, fact.subject))
    alike: Counter[frozenset] = Counter()
    kept = []
    for mention, facts in stated.items():
        key = frozenset(facts)
        alike[key] += 1
        can_be_true = any(what in possible or other is not None for what, other in key)
        if can_be_true and alike[key] <= len(scene.things):
            kept.append(mention)
    return kept


def _matches(mentions: list[int], things: int) -> Iterator[dict[int, int]]:
    """Yield every largest one-to-one match, {mention: thing}."""
    if len(mentions) <= things:
        for chosen in permutations(range(things), len(mentions)):
            yield dict(zip(mentions, chosen))
    else:
        for chosen in permutations(mentions, things):
            yield dict(zip(chosen, range(things)))


def _holds(fact: Fact, match: dict[int, int], scene: Scene) -> bool:
    if fact.subject is None:
        return fact.what in scene.facts()
    if fact.subject not in match:
        return False
    subject = scene.things[match[fact.subject]]
    if fact.other is None:
        return fact.what in subject.facts()
    return fact.other in match and RELATIONS[fact.what](subject, scene.things[match[fact.other]])


def mark(caption: str, scene: Scene) -> list[tuple[str, Optional[bool]]]:
    """Return each word with whether its facts are true, None if it states none."""
    statement = read_caption(caption)
    true = true_facts(statement, scene)
    return [
        (word, all(fact in true for fact in facts) if facts else None)
        for word, facts in statement.words
    ]
