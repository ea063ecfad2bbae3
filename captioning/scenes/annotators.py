"""Simulated annotators: they see the same scene, and say more or less of it."""

import random
from collections.abc import Iterator, Sequence

from captioning.scenes.world import COUNTS, RELATIONS, SHADES, SIZES, Scene, Thing

# How much each of the five says, from 0 to 1.
ANNOTATORS = (0.0, 0.1, 0.2, 0.4, 0.9)

PATIENCE = 9  # words after which no further thing is named

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
    """One caption, all of it true, by an annotator who says so much (0 to 1).

    Detail decides how many things are named, with which properties, and how specific the words
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
            if len(text.split()) > PATIENCE:
                break
            joint = _relation(before, thing, rng) if chance(0.05, 0.6) else None
            text += f" {joint or 'and'} {_phrase(thing, joint is None, chance, rng)}"
    if chance(0.05, 0.6):
        text += f" on the {_synonym(scene.ground, rng)}"
    return text


def describe_all(scene: Scene, rng: random.Random) -> list[str]:
    """A caption of each of the annotators."""
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


def _relation(a: Thing, b: Thing, rng: random.Random) -> str:
    true: Sequence[str] = [name for name, holds in RELATIONS.items() if holds(a, b)]
    return _synonym(rng.choice(true), rng)


def _synonym(word: str, rng: random.Random) -> str:
    return rng.choice(SYNONYMS.get(word, (word,)))
