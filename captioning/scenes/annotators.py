"""Writes captions of scenes as simulated annotators; `facts` reads them."""

import random
from collections.abc import Iterator

from captioning.scenes.facts import OBJECT_NOUNS, SYNONYMS
from captioning.scenes.world import COUNTS, SHADES, SIZES, Scene, Thing, true_relations

# How detailed the captions of each annotator are, from 0 to 1.
ANNOTATORS = (0.0, 0.1, 0.2, 0.4, 0.9)

MAX_WORDS = 9  # a caption that has more words mentions no further thing


def describe(scene: Scene, detail: float, rng: random.Random) -> str:
    """Return one true caption. detail: how detailed it is, from 0 to 1.

    A higher `detail` mentions more things and more properties, with more specific words: "circle"
    instead of "shape", "crimson" instead of "red", "in the upper left corner" instead of "on the
    left".
    """

    def chance(at_least, at_most):
        """Draw whether a property or thing is mentioned.

        The probability rises linearly from `at_least` for detail 0 to `at_most` for detail 1.
        """
        return rng.random() < at_least + (at_most - at_least) * detail

    things = scene.things
    # A summary states only the number of things, or mentions only the largest thing.
    summarise = len(things) > 1 and not chance(0.25, 0.97)
    if summarise and rng.random() < 0.5:
        text = f"{COUNTS[len(things) - 1]} {rng.choice(OBJECT_NOUNS)}s"
    else:
        text = _noun_phrase(things[0], chance, rng)
        for previous, thing in zip(things, () if summarise else things[1:]):
            if len(text.split()) > MAX_WORDS:
                break
            relation = None
            if chance(0.05, 0.6):
                relation = _synonym(rng.choice(true_relations(previous, thing)), rng)
            phrase = _noun_phrase(thing, chance, rng, may_have_place=relation is None)
            text += f" {relation or 'and'} {phrase}"
    if chance(0.05, 0.6):
        text += f" on the {_synonym(scene.ground, rng)}"
    return text


def describe_all(scene: Scene, rng: random.Random) -> list[str]:
    """Return one caption per annotator."""
    return [describe(scene, detail, rng) for detail in ANNOTATORS]


def _noun_phrase(thing: Thing, chance, rng: random.Random, may_have_place: bool = True) -> str:
    """Return a noun phrase for a thing, such as "a crimson star".

    may_have_place: whether the phrase may end with the thing's place. chance: see `describe`.
    """
    words = [*_properties(thing, chance, rng)]
    words.append(_synonym(thing.shape, rng) if chance(0.5, 0.97) else rng.choice(OBJECT_NOUNS))
    article = "an" if words[0][0] in "aeiou" else "a"
    place = f" {_place(thing, chance, rng)}" if may_have_place and chance(0.1, 0.75) else ""
    return f"{article} {' '.join(words)}{place}"


def _properties(thing: Thing, chance, rng: random.Random) -> Iterator[str]:
    """Yield adjectives for a thing."""
    if chance(0.03, 0.65):
        general, *extreme = SIZES[thing.size]
        if extreme and chance(0.2, 0.9):
            yield extreme[0]
        else:
            yield _synonym(general, rng)
    if chance(0.3, 0.93):
        colour, brightness = SHADES[thing.shade]
        if chance(0.1, 0.75):
            yield thing.shade
        else:
            if chance(0.05, 0.4):
                yield brightness
            yield colour


def _place(thing: Thing, chance, rng: random.Random) -> str:
    """Return words for a thing's place, such as "on the left"."""
    places = list(thing.place())
    if places == ["middle"]:
        return f"in the {_synonym('middle', rng)}"
    if len(places) == 2 and chance(0.2, 0.9):
        column, row = places
        return f"in the {'upper' if row == 'top' else 'lower'} {column} corner"
    place = rng.choice(places)
    return f"{'on' if place in ('left', 'right') else 'at'} the {place}"


def _synonym(word: str, rng: random.Random) -> str:
    return rng.choice(SYNONYMS.get(word, (word,)))
