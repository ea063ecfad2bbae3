"""Make the images of a folder small once, so that each epoch has less to read and decode.

    python -m captioning.resize data/coco/images data/coco/images256
    python -m captioning.resize data/coco/images data/coco/images256 --side 256 --workers 8

Names and the folders within stay, so image_root is all that changes in a configuration. The shorter
side becomes --side, the aspect ratio stays; an image that is no larger is copied as it is. What is
there already is passed over: the same command goes on where it was stopped.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import io
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import NamedTuple, Optional

from PIL import Image

from captioning.data.image import decode, open_image
from captioning.files.images import images_in
from captioning.files.reading import read_json
from captioning.files.writing import atomic_write, atomic_writes, refusals_told, write_json
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.program import exit_code
from captioning.runtime.progress import progress, say

SIDE = 256
QUALITY = 95  # of the formats that have one
DONE = ("resized", "copied", "there already", "cannot be read")
RECORD = ".resize.json"  # in the folder of the small images: what they were made with


class Outcome(NamedTuple):
    """What became of an image, of DONE, and why where that was nothing."""

    done: str
    reason: str = ""


def small(path: Path, side: int) -> tuple[str, bytes]:
    """What that took, of DONE, and an image file whose shorter side is `side` at most.

    It is whole and of the same format, without EXIF, whose orientation training does not apply.
    Raises UserError for what is no image.
    """
    with open_image(path) as image:
        width, height = image.size
        scale = side / min(width, height)
        if scale >= 1:
            decode(image, path)
            return "copied", path.read_bytes()
        size = max(round(width * scale), side), max(round(height * scale), side)
        image.draft(None, (2 * size[0], 2 * size[1]))  # a JPEG decoder halves it as it decodes
        resized = decode(image, path).resize(size, Image.Resampling.BICUBIC)
    content = io.BytesIO()
    # "MPO" are the JPEGs of phones that have a second picture after the first.
    resized.save(content, image.format.replace("MPO", "JPEG"), quality=QUALITY)
    return "resized", content.getvalue()


def make_small(name: str, source: Path, target: Path, side: int) -> Outcome:
    """Write one image. Raises UserError where the disk refuses it."""
    try:
        done, content = small(source / name, side)
    except UserError as error:
        return Outcome("cannot be read", str(error))
    path = target / name
    with refusals_told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(content)
    return Outcome(done)


def resize_folder(source: Path, target: Path, side: int, workers: int) -> Counter:
    """Make all images of a folder small in another; how many were resized, copied and so on.

    Raises UserError for folders that cannot be, and for a target made with another side; Stopped
    when a signal asks for it.
    """
    if not source.is_dir():
        raise UserError(f"{source}: no such folder")
    if source.resolve() in (target.resolve(), *target.resolve().parents):
        raise UserError(f"{target} is {source} or within it: give a folder beside it")
    found = [os.path.relpath(path, source) for path in images_in(str(source))]
    if not found:
        raise UserError(f"{source} holds no images")
    _keep_to(side, target)
    for leftover in atomic_writes(target):
        leftover.unlink()
    todo = [name for name in found if not (target / name).exists()]
    counts = Counter({**dict.fromkeys(DONE, 0), "there already": len(found) - len(todo)})
    pool = ThreadPoolExecutor(workers)  # Pillow decodes and resizes beside Python
    try:
        work = partial(make_small, source=source, target=target, side=side)
        begun = [pool.submit(work, name) for name in todo]
        with progress(len(found), "images", initial=counts["there already"]) as bar:
            for future in as_completed(begun):
                outcome = future.result()
                if outcome.reason:
                    say(outcome.reason)
                counts[outcome.done] += 1
                bar.update()
                if signals.stop_requested():
                    raise signals.Stopped
    finally:
        pool.shutdown(cancel_futures=True)
    return counts


def _keep_to(side: int, target: Path) -> None:
    """Raise UserError where the folder has images of another side; write down the side."""
    record = target / RECORD
    if not record.exists():
        write_json({"side": side}, record)
    elif read_json(record) != {"side": side}:
        raise UserError(f"{target} has images of another side ({record}): give another folder")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program; see `captioning.runtime.program`."""
    parser = argparse.ArgumentParser(prog="python -m captioning.resize", description=__doc__)
    parser.add_argument("source", type=Path, help="a folder of images")
    parser.add_argument("target", type=Path, help="the folder to put the small ones in")
    parser.add_argument("--side", type=int, default=SIDE, help=f"pixels (default: {SIDE})")
    cores = os.cpu_count() or 1
    parser.add_argument("--workers", type=int, default=cores, help="default: the cores")
    arguments = parser.parse_args(argv)
    for name in ("side", "workers"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} has to be 1 or more")

    def program() -> None:
        counts = resize_folder(**vars(arguments))
        told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        say(f"{sum(counts.values())} images: {told}; they are in {arguments.target}")

    return exit_code(program)


if __name__ == "__main__":
    sys.exit(main())
