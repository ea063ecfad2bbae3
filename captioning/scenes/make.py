"""Draw a captioned data set, in the annotation format that training reads.

images/scene_000000.png, ...
scenes_{train,val,test}.json   images, each with five captions
scenes.json                    what is in each image: seed, version and, by image id, the scene
vocab.txt                      the words of the captions, for the tokeniser
vocab_pieces.txt               the same and `##word` of those that begin one, for first_token_shift
"""

import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Optional

from captioning.files.reading import read_json, read_text
from captioning.files.writing import refusals_told, write_json, write_text
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress
from captioning.scenes.annotators import describe_all
from captioning.scenes.drawing import draw
from captioning.scenes.world import Scene, Thing, random_scene

SPLITS = {"train": 6000, "val": 150, "test": 300}
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PROMPT = "a picture of"
PIECES = "vocab_pieces.txt"
VERSION = 1  # of the world: another one draws other scenes from the same seed


def make_scenes(folder: Path, seed: int = 0, splits: Mapping[str, int] = SPLITS) -> bool:
    """Write the data set into `folder`, which appears last; False if it is there already.

    splits: how many scenes by split. The same seed gives the same files. Raises UserError if the
    folder holds something else.
    """
    made_from = {"version": VERSION, "seed": seed, "splits": dict(splits)}
    with refusals_told(folder):
        if folder.exists() and any(folder.iterdir()):
            _check(folder, made_from)
            if not (folder / PIECES).exists():  # drawn before there was one
                _write_pieces(folder, splits)
            return False
        _draw_all(folder, made_from)
    return True


def _draw_all(folder: Path, made_from: dict) -> None:
    seed, splits = made_from["seed"], made_from["splits"]
    staged = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(staged, ignore_errors=True)
    (staged / "images").mkdir(parents=True)
    rng = random.Random(seed)
    words, scenes = set(PROMPT.split()), {}
    with progress(sum(splits.values()), "drawing scenes") as bar:
        for split, count in splits.items():
            entries = []
            for _ in range(count):
                scene, number = random_scene(rng), len(scenes)
                name = f"images/scene_{number:06d}.png"
                draw(scene, rng).save(staged / name, compress_level=1)
                captions = describe_all(scene, rng)
                entries.append({"image": name, "caption": captions, "image_id": number})
                words.update(word for caption in captions for word in caption.split())
                scenes[number] = [scene.ground, *scene.things]
                bar.update()
            write_json(entries, staged / f"scenes_{split}.json")
    write_text("\n".join([*SPECIAL_TOKENS, *sorted(words)]) + "\n", staged / "vocab.txt")
    _write_pieces(staged, splits)
    write_json({"made_from": made_from, "scenes": scenes}, staged / "scenes.json")
    staged.replace(folder)


def _write_pieces(folder: Path, splits: Iterable[str]) -> None:
    """In a file of its own: a larger vocabulary would draw the demo's captioner other weights."""
    files = [folder / f"scenes_{split}.json" for split in splits]
    captions = [text for path in files for entry in read_json(path) for text in entry["caption"]]
    first = sorted({caption.split()[0] for caption in captions})
    pieces = "".join(f"##{word}\n" for word in first)
    write_text(read_text(folder / "vocab.txt") + pieces, folder / PIECES)


def read_scenes(path: Path) -> dict[int, Scene]:
    """What is in each image, by image id. Raises UserError for a file of another kind."""
    content = _read(path)
    try:
        return {
            int(number): Scene(ground, tuple(Thing(*thing) for thing in things))
            for number, (ground, *things) in content["scenes"].items()
        }
    except (TypeError, ValueError, AttributeError):
        raise UserError(
            f"{path}: says of no scene what is in it: make it with captioning.scenes"
        ) from None


def _check(folder: Path, made_from: dict) -> None:
    path = folder / "scenes.json"
    content = _read(path) if path.exists() else None
    if content is None or content["made_from"] != made_from:
        raise UserError(
            f"{folder} holds something other than the scenes of seed {made_from['seed']} and "
            f"{sum(made_from['splits'].values())} images: move it away, or name another folder"
        )


def _read(path: Path) -> Optional[dict]:
    content = read_json(path)
    return (
        content if isinstance(content, dict) and {"made_from", "scenes"} <= set(content) else None
    )
