"""Finds the facts that captions of scenes state, and the true ones among them.

A caption is read word by word, so that captions with broken grammar can be scored, too. Each noun
is a mention of one thing. An adjective belongs to the next noun, a place to the previous noun, and
a relation to the nouns before and after it. Specific words state several facts: "crimson" states
red and dark, "tiny" states small and tiny. Words without a fact ("a", "and", "with") are skipped.
If a mention repeats a fact, the fact counts once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import NamedTuple, Optional

from captioning.scenes.world import (
    COUNTS,
    GROUNDS,
    RELATIONS,
    SHADES,
    SHAPES,
    SIZES,
    Scene,
    Thing,
)

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


def _with_synonyms(words) -> Iterator[tuple[str, str]]:
    """Yield (synonym, word) for each synonym of each word."""
    return ((name, word) for word in words for name in SYNONYMS.get(word, (word,)))


# The facts that words state. ADJECTIVES is {word: facts}, the other dicts are {word: fact}.
NOUNS = {**{noun: "object" for noun in OBJECT_NOUNS}, **dict(_with_synonyms(SHAPES))}
ADJECTIVES = {
    **SHADES,
    **{word: (word,) for properties in SHADES.values() for word in properties},
    **{name: SIZES[size] for name, size in _with_synonyms(SIZES)},
}
PLACES = {
    **{word: word for word in ("left", "right", "top", "bottom")},
    **{name: "middle" for name in SYNONYMS["middle"]},
    "upper": "top",
    "lower": "bottom",
}
# The relations that a word states, or two words together: "left" alone is a place.
RELATION_WORDS = {
    **{word: word for word in ("left of", "right of", "above", "below", "near")},
    "next": "near",
}
SCENE_WORDS = {**dict(_with_synonyms(GROUNDS)), **{count: count for count in COUNTS}}


class Fact(NamedTuple):
    """A fact that a word states.

    - what: the property or relation
    - subject: the index of the mention with the property, or of the first mention of a relation;
      None for a fact about the scene
    - other: the index of the second mention of a relation; otherwise None
    """

    what: str
    subject: Optional[int]
    other: Optional[int] = None


class Statement(NamedTuple):
    """The content of a caption.

    words: for each word, a pair (word, facts that the word states). mentions: the number of
    mentions.
    """

    words: tuple[tuple[str, tuple[Fact, ...]], ...]
    mentions: int

    def facts(self) -> frozenset[Fact]:
        """Return the distinct facts of all words."""
        return frozenset(fact for _, facts in self.words for fact in facts)


def read_caption(caption: str) -> Statement:
    """Return the facts stated by each word of a caption."""
    words = caption.split()
    stated = []
    mention = -1  # index of the latest mention; an adjective belongs to mention + 1
    pending_adjective = False  # whether an adjective still has no noun
    for i, word in enumerate(words):
        key, facts = word.strip(".,").lower(), ()
        two_words = " ".join([key, *words[i + 1 : i + 2]])
        relation = RELATION_WORDS.get(two_words, RELATION_WORDS.get(key))
        if key in NOUNS:
            mention, pending_adjective = mention + 1, False
            facts = (Fact(NOUNS[key], mention),)
        elif key in ADJECTIVES:
            pending_adjective = True
            facts = tuple(Fact(what, mention + 1) for what in ADJECTIVES[key])
        elif relation is not None and mention >= 0:
            facts = (Fact(relation, mention, other=mention + 1),)
        elif key in PLACES and relation is None and mention >= 0:
            facts = (Fact(PLACES[key], mention),)
        elif key in SCENE_WORDS:
            facts = (Fact(SCENE_WORDS[key], subject=None),)
        stated.append(facts)
    mentions = mention + 1
    if pending_adjective:  # an adjective without a noun is a mention, too
        mentions += 1
    # A relation at the end of a caption lacks its second mention, so it states nothing.
    complete = [
        tuple(fact for fact in facts if fact.other is None or fact.other < mentions)
        for facts in stated
    ]
    return Statement(tuple(zip(words, complete)), mentions)


def true_facts(statement: Statement, scene: Scene) -> frozenset[Fact]:
    """Return the stated facts that are true.

    Mentions are matched to things in the way that makes most facts true. Two mentions never match
    the same thing. Thus if a scene has two things and a caption has three mentions, one mention has
    no true fact.
    """
    facts = statement.facts()
    candidates = (
        frozenset(fact for fact in facts if _holds(fact, matching, scene))
        for matching in _matchings(_distinct_mentions(statement, scene), scene.things)
    )
    return max(candidates, key=len)


def max_true_facts(facts: Iterable[Fact], scene: Scene) -> int:
    """Return an upper bound on the number of true facts.

    This is faster than `true_facts`, because mentions are not matched to things: a property counts
    if any thing has the property, and every relation counts.
    """
    of_scene, of_things = scene.facts(), scene.facts_of_things()
    return sum(
        fact.other is not None or fact.what in (of_scene if fact.subject is None else of_things)
        for fact in facts
    )


def _distinct_mentions(statement: Statement, scene: Scene) -> list[int]:
    """Return the indices of the mentions that can have a true fact.

    If the scene has n things, at most n mentions with the same facts are kept. Without this limit,
    the time for a repetitive caption would grow with the cube of its number of mentions.
    """
    possible = scene.facts_of_things()
    stated = [set() for _ in range(statement.mentions)]  # per mention: (fact, the other mention)
    for what, *mentions in statement.facts():
        for mention, other in zip(mentions, reversed(mentions)):
            if mention is not None:
                stated[mention].add((what, other))
    counts = Counter()
    kept = []
    for mention, facts in enumerate(map(frozenset, stated)):
        counts[facts] += 1
        can_be_true = any(what in possible or other is not None for what, other in facts)
        if can_be_true and counts[facts] <= len(scene.things):
            kept.append(mention)
    return kept


def _matchings(mentions: list[int], things: tuple[Thing, ...]) -> Iterator[dict[int, Thing]]:
    """Yield all one-to-one matchings of maximal size, as {mention: thing}."""
    if len(mentions) <= len(things):
        for chosen in permutations(things, len(mentions)):
            yield dict(zip(mentions, chosen))
    else:
        for chosen in permutations(mentions, len(things)):
            yield dict(zip(chosen, things))


def _holds(fact: Fact, matching: dict[int, Thing], scene: Scene) -> bool:
    """Whether a fact is true. matching: {mention: thing}."""
    if fact.subject is None:
        return fact.what in scene.facts()
    subject, other = matching.get(fact.subject), matching.get(fact.other)
    if fact.other is None:
        return subject is not None and fact.what in subject.facts()
    return None not in (subject, other) and RELATIONS[fact.what](subject, other)


def mark_words(caption: str, scene: Scene) -> list[tuple[str, Optional[bool]]]:
    """Return a pair (word, mark) for each word of a caption.

    The mark is True if all facts of the word are true, False if not, None for a word without facts.
    """
    statement = read_caption(caption)
    facts_of_scene = true_facts(statement, scene)
    return [
        (word, all(fact in facts_of_scene for fact in facts) if facts else None)
        for word, facts in statement.words
    ]
