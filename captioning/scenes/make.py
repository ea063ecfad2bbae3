"""Makes a captioned data set of drawn scenes, in the annotation format of training.

The data set's folder has these files:

images/scene_000000.png, ...
scenes_{train,val,test}.json   for each image its file and captions: five, or two paragraphs
scenes.json                    version, seed, split sizes, and the content of each scene by image id
vocab.txt                      special tokens and the words of captions, for the tokeniser
vocab_pieces.txt               vocab.txt, and `##word` for each word that starts a caption; it is
                               the vocabulary for runs with first_token_shift
"""

import math
import random
import shutil
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from PIL import Image, ImageDraw

from captioning.files.reading import read_json
from captioning.files.writing import user_errors, write_json, write_text
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress
from captioning.scenes.annotators import describe_all
from captioning.scenes.paragraphs import describe_in_paragraphs
from captioning.scenes.world import COUNTS, GROUNDS, SHADES, SHAPES, SIZES, Scene, Thing

SPLITS = {"train": 6000, "val": 150, "test": 300}
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PROMPT = "a picture of"
VERSION = 1  # has to be increased when a change makes other scenes from the same seed

SIDE = 96  # pixels
DRAWN_SIDE = 192  # images are drawn larger, then reduced, for smooth edges
UNIT = DRAWN_SIDE / 48  # pixels per unit of the world
# Radii in units of the world, which is 48 units wide and high.
RADIUS = {"tiny": 3.5, "small": 6.0, "large": 8.0, "huge": 11.0}

SHADE_COLOURS = {
    "crimson": "#a00c2a",
    "coral": "#ff7a68",
    "navy": "#162080",
    "azure": "#3494ff",
    "olive": "#5c6812",
    "lime": "#78e230",
    "amber": "#d68e0a",
    "lemon": "#fff254",
    "plum": "#621862",
    "violet": "#be6ef8",
}
# The colours of each ground and of the marks on it.
GROUND_COLOURS = {
    "sand": ("#e2cea0", "#ccb482"),
    "grass": ("#9eba8a", "#80a46e"),
    "water": ("#96c4d4", "#badce6"),
    "snow": ("#f4f7fa", "#dee6f0"),
    "stone": ("#acacb0", "#8e8e96"),
}
# The angle in radians and the radius of each corner of a star.
_STAR = [(2 * math.pi * (i / 10), 0.4 if i % 2 else 1.0) for i in range(10)]
# The polygons of each shape, of radius 1 around the origin. Circles and rings are not polygons.
POLYGONS = {
    "square": [[(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)]],
    "triangle": [[(0, -1), (1, 0.85), (-1, 0.85)]],
    "cross": [
        [(-0.3, -1), (0.3, -1), (0.3, 1), (-0.3, 1)],
        [(-1, -0.3), (1, -0.3), (1, 0.3), (-1, 0.3)],
    ],
    "star": [[(radius * math.sin(turn), -radius * math.cos(turn)) for turn, radius in _STAR]],
    "heart": [[(-0.93, -0.2), (0.93, -0.2), (0, 1)]],
}


def make_scenes(
    folder: Path, seed: int = 0, splits: Mapping[str, int] = SPLITS, paragraphs: bool = False
) -> bool:
    """Write the data set to a temporary folder, and rename it to `folder` when it is complete.

    splits: {split: number of scenes}. paragraphs: whether captions are paragraphs. The same seed
    gives the same files. Returns True, or False if `folder` already has this data set. Raises
    UserError if `folder` contains something else.
    """
    made_from = {"version": VERSION, "seed": seed, "splits": dict(splits)}
    if paragraphs:
        made_from["paragraphs"] = True
    with user_errors(folder):
        path = folder / "scenes.json"
        if path.exists() and read_json(path).get("made_from") == made_from:
            return False
        if folder.exists() and any(folder.iterdir()):
            raise UserError(
                f"{folder} contains something other than the scenes of seed {seed} with "
                f"{sum(splits.values())} images: move it away, or choose another folder"
            )
        _write_data_set(folder, made_from)
    return True


def _write_data_set(folder: Path, made_from: dict):
    """Write all files.

    made_from: {"version", "seed", "splits"}, and "paragraphs": True if captions are paragraphs.
    """
    splits = made_from["splits"]
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / "images").mkdir(parents=True)
    rng = random.Random(made_from["seed"])
    describe = describe_in_paragraphs if made_from.get("paragraphs") else describe_all
    texts, scenes = [], {}
    with progress(sum(splits.values()), "drawing scenes") as bar:
        for split, count in splits.items():
            entries = []
            for _ in range(count):
                scene, image_id = random_scene(rng), len(scenes)
                name = image_name(image_id)
                draw(scene, rng).save(temporary / name, compress_level=1)
                captions = describe(scene, rng)
                entries.append({"image": name, "caption": captions, "image_id": image_id})
                texts += captions
                scenes[image_id] = [scene.ground, *scene.things]
                bar.update()
            write_json(entries, temporary / f"scenes_{split}.json")
    vocabulary = [*SPECIAL_TOKENS, *sorted({*" ".join([PROMPT, *texts]).split()})]
    # The pieces have a separate file. In vocab.txt, they would enlarge the vocabulary of all
    # captioners, so that the same seed would give other initial weights.
    with_pieces = [*vocabulary, *sorted({f"##{text.split()[0]}" for text in texts})]
    for name, tokens in {"vocab.txt": vocabulary, "vocab_pieces.txt": with_pieces}.items():
        write_text("".join(f"{token}\n" for token in tokens), temporary / name)
    write_json({"made_from": made_from, "scenes": scenes}, temporary / "scenes.json")
    temporary.replace(folder)


def random_scene(rng: random.Random) -> Scene:
    """Return a random scene. Its things differ in size and do not overlap."""
    pick = rng.choice
    while True:
        sizes = rng.sample(list(SIZES), rng.randint(1, len(COUNTS)))
        sizes.sort(key=lambda size: -RADIUS[size])
        things = tuple(
            Thing(pick(SHAPES), pick(list(SHADES)), size, rng.randrange(3), rng.randrange(3))
            for size in sizes
        )
        if all(_are_apart(a, b) for a, b in combinations(things, 2)):
            return Scene(pick(GROUNDS), things)


def _are_apart(a: Thing, b: Thing) -> bool:
    # The cells of the grid are 16 units wide and high.
    distance = 16 * math.hypot(a.column - b.column, a.row - b.row)
    return distance >= RADIUS[a.size] + RADIUS[b.size]


def image_name(image_id: int) -> str:
    """Return the path of an image within the data set's folder."""
    return f"images/scene_{image_id:06d}.png"


def draw(scene: Scene, rng: random.Random) -> Image.Image:
    """Return an RGB image of SIDE x SIDE pixels.

    rng: draws the positions of the marks on the ground, and small shifts of the things.
    """
    image = Image.new("RGB", (DRAWN_SIDE, DRAWN_SIDE), GROUND_COLOURS[scene.ground][0])
    canvas = ImageDraw.Draw(image)
    for _ in range(40):
        x, y = rng.uniform(0, DRAWN_SIDE), rng.uniform(0, DRAWN_SIDE)
        _draw_ground_mark(canvas, scene.ground, x, y)
    for thing in scene.things:
        _draw_thing(canvas, thing, rng)
    return image.resize((SIDE, SIDE), Image.Resampling.BOX)


# A mark is, for example, a blade of grass on the ground. x, y: in pixels.
def _draw_ground_mark(canvas: ImageDraw.ImageDraw, ground: str, x: float, y: float):
    colour = GROUND_COLOURS[ground][1]
    if ground == "grass":
        canvas.line((x, y, x + 2.4, y - 8), colour, width=2)
    elif ground == "water":
        canvas.arc((x, y, x + 20, y + 8), 20, 160, colour, width=2)
    elif ground == "stone":
        canvas.line((x, y, x + 12, y + 4, x + 16, y + 16), colour, width=2)
    else:
        canvas.ellipse(_box(x, y, 1.6 if ground == "sand" else 3.6), colour)


def _draw_thing(canvas: ImageDraw.ImageDraw, thing: Thing, rng: random.Random):
    r, colour = UNIT * RADIUS[thing.size], SHADE_COLOURS[thing.shade]
    # The middle of the thing's cell, shifted a little, but so that the thing is within the image.
    x, y = (
        min(max(32 + 64 * cell + rng.uniform(-4, 4), r), DRAWN_SIDE - r)
        for cell in (thing.column, thing.row)
    )
    if thing.shape == "circle":
        canvas.ellipse(_box(x, y, r), colour)
    elif thing.shape == "ring":
        canvas.ellipse(_box(x, y, r), outline=colour, width=round(0.4 * r))
    elif thing.shape == "heart":  # two circles above a triangle
        for side in (-0.48, 0.48):
            left, top = x + r * (side - 0.5), y - 0.9 * r
            canvas.ellipse((left, top, left + r, top + r), colour)
    for points in POLYGONS.get(thing.shape, ()):
        canvas.polygon([(x + r * u, y + r * v) for u, v in points], colour)


def _box(x: float, y: float, r: float) -> tuple[float, float, float, float]:
    """Return the corners of a square around a circle."""
    return x - r, y - r, x + r, y + r
