"""Draw a small captioned data set, so that every program has something to run on.

python -m captioning.scenes --output data/scenes

Each scene holds one or two shapes on a ground. Five captions an image, from annotators who say
more or less of what there is, in the project's own annotation format, with the vocabulary beside.
"""

import argparse
import random
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from PIL import Image, ImageDraw

from captioning.json_file import write_json

SIDE = 64
SPLITS = {"train": 600, "val": 60, "test": 60}
COLOURS = {
    "red": (214, 48, 49),
    "green": (39, 174, 96),
    "blue": (41, 98, 214),
    "yellow": (246, 211, 45),
    "purple": (142, 68, 173),
    "white": (245, 245, 245),
}
GROUNDS = {"grass": (120, 160, 90), "sand": (214, 190, 140), "water": (110, 170, 200)}
SHAPES = ("ball", "box", "kite")
SIZES = {"small": 9, "large": 15}
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Thing(NamedTuple):
    shape: str
    colour: str
    size: str
    left: bool


def draw_scene(things: Sequence[Thing], ground: str, rng: random.Random) -> Image.Image:
    """RGB, SIDE x SIDE: the first thing on its side of the middle, the second on the other."""
    image = Image.new("RGB", (SIDE, SIDE), GROUNDS[ground])
    canvas = ImageDraw.Draw(image)
    for thing in things:
        x = (SIDE // 4 if thing.left else 3 * SIDE // 4) + rng.randint(-2, 2)
        y, r = SIDE // 2 + rng.randint(-12, 12), SIZES[thing.size]
        colour = COLOURS[thing.colour]
        if thing.shape == "ball":
            canvas.ellipse((x - r, y - r, x + r, y + r), fill=colour)
        elif thing.shape == "box":
            canvas.rectangle((x - r, y - r, x + r, y + r), fill=colour)
        else:
            canvas.polygon([(x, y - r), (x + r, y), (x, y + r), (x - r, y)], fill=colour)
    return image


def describe(things: Sequence[Thing], ground: str, rng: random.Random) -> str:
    """One annotator's caption: of each thing more or less, of the ground or not."""
    detail = rng.randint(0, 2)
    named = []
    for thing in things:
        words = [thing.size] if detail == 2 else []
        words += [thing.colour] if detail >= 1 else []
        named.append(f"a {' '.join([*words, thing.shape])}")
    if len(named) == 2:
        joint = f" to the {'left' if things[0].left else 'right'} of " if detail == 2 else " and "
    text = named[0] if len(named) == 1 else joint.join(named)
    return text + (f" on the {ground}" if rng.random() < 0.3 + 0.3 * detail else "")


def make_scenes(folder: Path, seed: int = 0, splits: Mapping[str, int] = SPLITS) -> None:
    """Write images/, scenes_{split}.json and vocab.txt into `folder`, which appears last.

    splits: how many scenes by split. The same seed gives the same files.
    """
    staged = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(staged, ignore_errors=True)
    (staged / "images").mkdir(parents=True)
    rng, words, number = random.Random(seed), set(["a", "picture", "of"]), 0
    for split, count in splits.items():
        entries = []
        for _ in range(count):
            ground, left = rng.choice(list(GROUNDS)), rng.random() < 0.5
            things = [
                Thing(rng.choice(SHAPES), rng.choice(list(COLOURS)), rng.choice(list(SIZES)), side)
                for side in (left, not left)[: rng.randint(1, 2)]
            ]
            name = f"images/scene_{number:06d}.png"
            draw_scene(things, ground, rng).save(staged / name)
            captions = [describe(things, ground, rng) for _ in range(5)]
            entries.append({"image": name, "caption": captions})
            words.update(word for caption in captions for word in caption.split())
            number += 1
        write_json(entries, staged / f"scenes_{split}.json")
    (staged / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *sorted(words)]) + "\n")
    staged.replace(folder)


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m captioning.scenes", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("data/scenes"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if arguments.output.exists():
        print(f"{arguments.output} is there already", file=sys.stderr)
    else:
        make_scenes(arguments.output, arguments.seed)
        print(f"drew {sum(SPLITS.values())} scenes into {arguments.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
