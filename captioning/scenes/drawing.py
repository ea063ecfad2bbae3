"""Scenes to pictures."""

import math
import random

from PIL import Image, ImageDraw

from captioning.scenes.world import RADIUS, Scene, Thing

SIDE = 96  # pixels
OVERSAMPLED = 2  # drawn so many times as large, then made smaller, for smooth edges
UNIT = SIDE * OVERSAMPLED / 48  # the world is 48 wide

SHADES = {
    "crimson": (160, 12, 42),
    "coral": (255, 122, 104),
    "navy": (22, 32, 128),
    "azure": (52, 148, 255),
    "olive": (92, 104, 18),
    "lime": (120, 226, 48),
    "amber": (214, 142, 10),
    "lemon": (255, 242, 84),
    "plum": (98, 24, 98),
    "violet": (190, 110, 248),
}
# Of the ground itself and of the marks on it.
GROUNDS = {
    "sand": ((226, 206, 160), (204, 180, 130)),
    "grass": ((158, 186, 138), (128, 164, 110)),
    "water": ((150, 196, 212), (186, 220, 230)),
    "snow": ((244, 247, 250), (222, 230, 240)),
    "stone": ((172, 172, 176), (142, 142, 150)),
}


def draw(scene: Scene, rng: random.Random) -> Image.Image:
    """RGB, SIDE x SIDE; `rng` moves the things a little and strews marks on the ground."""
    side = SIDE * OVERSAMPLED
    image = Image.new("RGB", (side, side), GROUNDS[scene.ground][0])
    canvas = ImageDraw.Draw(image)
    for _ in range(40):
        _mark(canvas, scene.ground, rng.uniform(0, 48), rng.uniform(0, 48))
    for thing in scene.things:
        _draw_thing(canvas, thing, rng)
    return image.resize((SIDE, SIDE), Image.Resampling.BOX)


def _mark(canvas: ImageDraw.ImageDraw, ground: str, x: float, y: float) -> None:
    colour = GROUNDS[ground][1]
    if ground == "grass":
        canvas.line(_scaled([(x, y), (x + 0.6, y - 2)]), colour, width=2)
    elif ground == "water":
        canvas.arc(_scaled([(x, y), (x + 5, y + 2)]), 20, 160, colour, width=2)
    elif ground == "stone":
        canvas.line(_scaled([(x, y), (x + 3, y + 1), (x + 4, y + 4)]), colour, width=2)
    else:
        r = 0.4 if ground == "sand" else 0.9
        canvas.ellipse(_scaled([(x - r, y - r), (x + r, y + r)]), colour)


def _draw_thing(canvas: ImageDraw.ImageDraw, thing: Thing, rng: random.Random) -> None:
    r, colour = RADIUS[thing.size], SHADES[thing.shade]
    x, y = (
        min(max(8 + 16 * cell + rng.uniform(-1, 1), r), 48 - r)
        for cell in (thing.column, thing.row)
    )

    def polygon(points: list[tuple[float, float]]) -> None:
        canvas.polygon(_scaled([(x + r * u, y + r * v) for u, v in points]), colour)

    box = _scaled([(x - r, y - r), (x + r, y + r)])
    if thing.shape == "circle":
        canvas.ellipse(box, colour)
    elif thing.shape == "ring":
        canvas.ellipse(box, outline=colour, width=round(0.4 * r * UNIT))
    elif thing.shape == "square":
        polygon([(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)])
    elif thing.shape == "triangle":
        polygon([(0, -1), (1, 0.85), (-1, 0.85)])
    elif thing.shape == "cross":
        polygon([(-0.3, -1), (0.3, -1), (0.3, 1), (-0.3, 1)])
        polygon([(-1, -0.3), (1, -0.3), (1, 0.3), (-1, 0.3)])
    elif thing.shape == "star":
        polygon([_on_circle(i / 10, 1.0 if i % 2 == 0 else 0.4) for i in range(10)])
    else:  # a heart: two circles and what joins them in a point
        for side in (-0.48, 0.48):
            left, top = x + r * (side - 0.5), y - 0.9 * r
            canvas.ellipse(_scaled([(left, top), (left + r, top + r)]), colour)
        polygon([(-0.93, -0.2), (0.93, -0.2), (0, 1)])


def _on_circle(turn: float, radius: float) -> tuple[float, float]:
    """A point by the share of a turn, clockwise from the top."""
    return radius * math.sin(2 * math.pi * turn), -radius * math.cos(2 * math.pi * turn)


def _scaled(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(UNIT * x, UNIT * y) for x, y in points]
