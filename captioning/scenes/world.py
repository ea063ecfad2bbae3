"""Defines scenes of simple shapes and the facts that are true of a scene."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from captioning.files.reading import read_json
from captioning.runtime.errors import UserError

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart")
# The colour and the brightness of each shade.
SHADES = {
    "crimson": ("red", "dark"),
    "coral": ("red", "light"),
    "navy": ("blue", "dark"),
    "azure": ("blue", "light"),
    "olive": ("green", "dark"),
    "lime": ("green", "light"),
    "amber": ("yellow", "dark"),
    "lemon": ("yellow", "light"),
    "plum": ("purple", "dark"),
    "violet": ("purple", "light"),
}
# The words that are true of each size, the most general word first.
SIZES = {
    "tiny": ("small", "tiny"),
    "small": ("small",),
    "large": ("large",),
    "huge": ("large", "huge"),
}
COLUMNS = ("left", "middle", "right")
ROWS = ("top", "middle", "bottom")
GROUNDS = ("sand", "grass", "water", "snow", "stone")
COUNTS = ("one", "two", "three")


class Thing(NamedTuple):
    """An object in a scene, in a cell of a 3 x 3 grid.

    column: 0 to 2 from the left. row: 0 to 2 from the top.
    """

    shape: str
    shade: str
    size: str
    column: int
    row: int

    @cache  # noqa: B019 - few different things exist
    def facts(self) -> frozenset[str]:
        """Return the facts about this thing.

        A shade adds two facts, a colour and a brightness, see SHADES. The size "tiny" also adds
        "small", and "huge" also adds "large".
        """
        return frozenset(
            ["object", self.shape, *SHADES[self.shade], *SIZES[self.size], *self.place()]
        )

    def place(self) -> Iterator[str]:
        """Yield one or two words: "middle", or the sides of the image on which the thing is."""
        if self.column == self.row == 1:
            yield "middle"
        if self.column != 1:
            yield COLUMNS[self.column]
        if self.row != 1:
            yield ROWS[self.row]


class Scene(NamedTuple):
    """One to three things on a ground, the largest thing first."""

    ground: str
    things: tuple[Thing, ...]

    def facts(self) -> frozenset[str]:
        """Return the facts about the scene as a whole."""
        return frozenset([self.ground, COUNTS[len(self.things) - 1]])

    def facts_of_things(self) -> frozenset[str]:
        """Return the facts about any of the things, without relations."""
        return frozenset().union(*(thing.facts() for thing in self.things))


# {relation: function that returns whether the relation holds between the things a and b}
RELATIONS = {
    "left of": lambda a, b: a.column < b.column,
    "right of": lambda a, b: a.column > b.column,
    "above": lambda a, b: a.row < b.row,
    "below": lambda a, b: a.row > b.row,
    "near": lambda a, b: max(abs(a.column - b.column), abs(a.row - b.row)) == 1,
}


def read_scenes(path: Path) -> dict[int, Scene]:
    """Return {image id: scene} from a scenes.json. Raises UserError if the file has none."""
    try:
        return {
            int(number): Scene(ground, tuple(Thing(*thing) for thing in things))
            for number, (ground, *things) in read_json(path)["scenes"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            f"{path}: does not describe scenes: make it with captioning.scenes"
        ) from None


def true_relations(a: Thing, b: Thing) -> list[str]:
    return [name for name, holds in RELATIONS.items() if holds(a, b)]
