"""Shrink the images of a folder once, so that each epoch reads and decodes less.

    python -m captioning.resize data/coco/images data/coco/images256
    python -m captioning.resize data/coco/images data/coco/images256 --side 256 --workers 8

Names and subfolders stay the same, so only image_root changes in a configuration. The shorter side
becomes --side, and the aspect ratio is kept. Images that are not larger are copied unchanged.
Existing files are skipped, so the same command resumes a stopped run.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import io
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from PIL import Image

from adapters.program import program_parser
from captioning.data.image import decode, open_image
from captioning.files.images import images_in
from captioning.files.reading import read_json
from captioning.files.writing import atomic_write, unfinished_writes, user_errors, write_json
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.job_runner import cores
from captioning.runtime.program import run_program
from captioning.runtime.progress import log_line, progress

SIDE = 256
QUALITY = 95  # of written JPEG, WebP and AVIF images
OUTCOMES = ("resized", "copied", "there already", "cannot be read")  # of one image
RECORD = ".resize.json"  # a file in the target folder that records --side


def resize_image(path: Path, side: int) -> tuple[str, bytes]:
    """Shrink an image to a shorter side of `side` pixels; return (outcome, bytes of the new file).

    The outcome is "copied" for an image that is not larger, else "resized". The format stays the
    same, with 8-bit RGB. A resized image has no EXIF data, so that viewers do not rotate it either.
    Raises UserError if the file is not a readable image.
    """
    with open_image(path) as image:
        width, height = image.size
        scale = side / min(width, height)
        if scale >= 1:
            decode(image, path)  # only to raise UserError for a broken image
            return "copied", path.read_bytes()
        size = max(round(width * scale), side), max(round(height * scale), side)
        image.draft(None, (2 * size[0], 2 * size[1]))  # JPEGs are decoded at a reduced size
        resized = decode(image, path).resize(size, Image.Resampling.BICUBIC)
    content = io.BytesIO()
    # Pillow would keep a TIFF's compression, which may be impossible for RGB or with a quality.
    resized.info.pop("compression", None)
    # Pillow's format "MPO" is a JPEG with a second picture after the first, as phones write it.
    resized.save(content, image.format.replace("MPO", "JPEG"), quality=QUALITY)
    return "resized", content.getvalue()


def resize_file(name: str, source: Path, target: Path, side: int) -> str:
    """Resize the image `name` of the folder `source` into the folder `target`.

    Returns one of OUTCOMES, but never "there already". Raises UserError if the new file cannot be
    written.
    """
    try:
        outcome, content = resize_image(source / name, side)
    except UserError as error:
        log_line(str(error))
        return "cannot be read"
    path = target / name
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(content)
    return outcome


def resize_folder(source: Path, target: Path, side: int, workers: int) -> Counter:
    """Resize all images of a folder into another; return the number of images of each outcome.

    The outcomes are OUTCOMES. workers: threads. Raises UserError for unusable folders, and if the
    target was made with another side. Raises Stopped after a signal.
    """
    if not source.is_dir():
        raise UserError(f"{source}: no such folder")
    if target.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{target} is {source} or inside it: give a folder outside of it")
    names = [os.path.relpath(path, source) for path in images_in(str(source))]
    if not names:
        raise UserError(f"{source} contains no images")
    _check_side(side, target)
    for leftover in unfinished_writes(target):
        leftover.unlink()
    remaining = [name for name in names if not (target / name).exists()]
    counts = Counter({**dict.fromkeys(OUTCOMES, 0), "there already": len(names) - len(remaining)})
    pool = ThreadPoolExecutor(workers)  # threads run in parallel, because Pillow releases the GIL
    try:
        resize = partial(resize_file, source=source, target=target, side=side)
        futures = [pool.submit(resize, name) for name in remaining]
        with progress(len(names), "images", initial=counts["there already"]) as bar:
            for future in as_completed(futures):
                counts[future.result()] += 1
                bar.update()
                if signals.stop_requested():
                    raise signals.Stopped
    finally:
        pool.shutdown(cancel_futures=True)
    return counts


def _check_side(side: int, target: Path) -> None:
    """Record `side` in the folder. Raises UserError if the folder was made with another side."""
    record = target / RECORD
    if not record.exists():
        write_json({"side": side}, record)
    elif read_json(record) != {"side": side}:
        raise UserError(f"{target} was made with another --side ({record}): give another folder")


def main(argv=None) -> int:
    """Run the program; see `captioning.runtime.program`."""
    parser = program_parser("python -m captioning.resize", __doc__)
    add = parser.add_argument
    add("source", type=Path, help="a folder of images")
    add("target", type=Path, help="the folder for the resized images")
    add("--side", type=int, default=SIDE, help=f"pixels (default: {SIDE})")
    add("--workers", type=int, default=cores(), help="threads (default: the cores)")
    arguments = parser.parse_args(argv)
    for name in ("side", "workers"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} has to be 1 or more")

    def program():
        counts = resize_folder(**vars(arguments))
        summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        log_line(f"{sum(counts.values())} images: {summary}; the folder is {arguments.target}")

    return run_program(program)


if __name__ == "__main__":
    sys.exit(main())
