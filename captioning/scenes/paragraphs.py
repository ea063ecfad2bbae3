"""Writes captions that are paragraphs, which say all that is in a scene and what is missing."""

import random
from collections.abc import Iterator

from captioning.scenes.world import (
    COUNTS,
    GROUNDS,
    SHADES,
    SHAPES,
    SIZES,
    Scene,
    Thing,
    true_relations,
)

PARAGRAPHS = 2  # per scene
SPLITS = {"train": 1500, "val": 30, "test": 60}
_ORDER = ("first", "second", "third")


def describe_in_paragraphs(scene: Scene, rng: random.Random) -> list[str]:
    """Return PARAGRAPHS texts of 100 to 200 words, which differ in the order of their sentences."""
    return [" ".join(_sentences(scene, rng)) for _ in range(PARAGRAPHS)]


def _sentences(scene: Scene, rng: random.Random) -> Iterator[str]:
    things = scene.things
    count = COUNTS[len(things) - 1]
    yield f"the picture shows {count} of the shapes that lie on the {scene.ground} ."
    for name, thing in zip(_ORDER, things):
        sentences = list(_about(name, thing))
        rng.shuffle(sentences)
        yield from sentences
    for i, a in enumerate(things):
        for b, name in zip(things[i + 1 :], _ORDER[i + 1 :]):
            yield f"the {_ORDER[i]} one is {' and '.join(true_relations(a, b))} the {name} one ."
    absent = [shape for shape in SHAPES if shape not in {thing.shape for thing in things}]
    colours = {SHADES[thing.shade][0] for thing in things}
    others = dict.fromkeys(colour for colour, _ in SHADES.values() if colour not in colours)
    missing = [
        *(f"there is no {shape} here ." for shape in absent),
        *(f"nothing is {colour} ." for colour in others),
        *(f"the ground is not {ground} ." for ground in GROUNDS if ground != scene.ground),
    ]
    rng.shuffle(missing)
    yield from missing


def _about(name: str, thing: Thing) -> Iterator[str]:
    """Yield sentences about a thing. name: one of _ORDER."""
    colour, brightness = SHADES[thing.shade]
    yield f"the {name} one that we see is a {thing.shape} ."
    yield f"its colour is {thing.shade} , a {brightness} {colour} ."
    yield f"for its size it is {' and '.join(SIZES[thing.size])} ."
    yield f"its place is {' and '.join(thing.place())} ."
