"""Training batches a second of our loader beside the original's.

    bash scripts/benchmark.sh loader [--quick]

Every contender reads the same files and hands out float batches (B, 3, 384, 384), normalised, one
epoch a round. "decoding alone" is the floor: whole images as RGB, and nothing made of them. Of tars
our loader and webdataset's make the same of each photo.
"""

import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Union
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from benchmarks.measure import alternate, program, row
from benchmarks.original_input import Photos, cv2, original_loader, plain_loader
from captioning.data import (
    Prefetcher,
    Sample,
    ShardDataset,
    Shards,
    TrainingDataset,
    normalise,
    training_loader,
    training_transform,
)
from captioning.data.image import open_image

# Photos that may lie beside the repository; of no use to anything but measuring.
PHOTOS = Path(__file__).resolve().parents[2] / "shared" / "data" / "photos"
WORKERS = (1, 2, 4)


def real_photos(count: int) -> list[Path]:
    """So many, evenly out of all that there are; none where there are fewer."""
    paths = sorted(PHOTOS.glob("*/*.jpg"))
    return paths[:: len(paths) // count][:count] if len(paths) >= count else []


def draw_photos(folder: Path, size: tuple[int, int], count: int, differing: int = 16) -> list[Path]:
    """JPEG files that take as long to decode as photos of that size: slopes, edges and grain."""
    random = np.random.default_rng(0)
    paths = []
    for number in range(min(count, differing)):
        shapes = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        scene = np.asarray(Image.fromarray(shapes).resize(size, Image.Resampling.BICUBIC))
        grain = random.normal(0, 6, scene.shape)
        paths.append(folder / f"{size[0]}_{number}.jpg")
        Image.fromarray((scene + grain).clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return [paths[number % differing] for number in range(count)]


class Ours:
    """Epoch after epoch of our loader, brought to the device that a model would run on."""

    def __init__(
        self,
        paths: Sequence[Path],
        image_size: int,
        batch_size: int,
        num_workers: int,
        device: Union[str, torch.device] = "cpu",
    ):
        self.device = torch.device(device)
        samples = [Sample(str(path), ("a photo",), number) for number, path in enumerate(paths)]
        dataset = TrainingDataset(samples, "", training_transform(image_size), seed=0)
        self.loader = training_loader(dataset, batch_size, 0, num_workers=num_workers)
        self.epoch = 0

    def __call__(self) -> int:
        self.loader.set_epoch(self.epoch)
        self.epoch += 1
        return sum(len(b["image"]) for b in Prefetcher(self.loader, self.device))


class Tars(Ours):
    """The same, of tars."""

    def __init__(self, tars: Sequence[str], image_size: int, batch_size: int, num_workers: int):
        self.device, self.epoch = torch.device("cpu"), 0
        dataset = ShardDataset(Shards(tars), "", training_transform(image_size), seed=0)
        self.loader = training_loader(dataset, batch_size, 0, num_workers=num_workers)


def write_tars(paths: Sequence[Path], folder: Path, tars: int) -> list[str]:
    """Tars of the photos, each with a caption, by the library that is compared."""
    from webdataset import TarWriter

    names = [str(folder / f"{number:05d}.tar") for number in range(tars)]
    for number, name in enumerate(names):
        with TarWriter(name, encoder=False) as writer:
            for place, path in enumerate(paths[number::tars]):
                data = {"jpg": path.read_bytes(), "txt": b"a photo"}
                writer.write({"__key__": f"{number:05d}{place:05d}", **data})
    return names


def webdataset_loader(
    tars: Sequence[str], image_size: int, batch_size: int, num_workers: int
) -> DataLoader:
    """webdataset's own pipeline, with our transform: shards and a buffer of 1000 shuffled."""
    from webdataset import WebDataset

    transform = training_transform(image_size)

    def made(sample: dict[str, Any]) -> tuple[torch.Tensor, str]:
        image = open_image(sample["__key__"], io.BytesIO(sample["jpg"]))
        return transform(image), sample["txt"].decode()

    shuffled = WebDataset(tars, shardshuffle=len(tars)).shuffle(1000)
    return DataLoader(
        shuffled.map(made), batch_size, num_workers=num_workers, persistent_workers=True
    )


def compare_tars(
    name: str, paths: Sequence[Path], sizes: tuple[int, int], num_workers: int, rounds: int
) -> dict[str, Any]:
    """One row, as `compare` makes it, of the same photos in tars, beside webdataset's loader."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, XDG_CACHE_HOME=folder):
        tars = write_tars(paths, Path(folder), 2 * num_workers)
        ours = Tars(tars, *sizes, num_workers)
        theirs = webdataset_loader(tars, *sizes, num_workers)
        contenders = {
            "ours": ours,
            "webdataset": lambda: sum(len(normalise(image)) for image, _ in theirs),
        }
        counts = {contender: work() for contender, work in contenders.items()}
        if len(set(counts.values())) > 1:
            raise RuntimeError(f"the contenders made different numbers of images: {counts}")
        seconds = alternate(contenders, rounds, warmup=0)
        ours.loader.close()
    label = f"{name} in tars, {num_workers} worker{'s' * (num_workers > 1)}"
    return row(label, seconds, "webdataset", items=(counts["ours"], "images"), workers=num_workers)


def forget(image: Image.Image) -> int:
    return 0


def compare(
    name: str, paths: Sequence[Path], sizes: tuple[int, int], num_workers: int, rounds: int
) -> dict[str, Any]:
    """One row; sizes: of the square that images become, and of batches."""
    original = original_loader(paths, *sizes, num_workers)
    decoding = plain_loader(Photos(paths, forget), sizes[1], num_workers)
    contenders = {
        "ours": Ours(paths, *sizes, num_workers),
        "original": lambda: sum(len(image) for image, _ in original),
        "decoding alone": lambda: sum(len(image) for image, _ in decoding),
    }
    counts = {contender: work() for contender, work in contenders.items()}
    if len(set(counts.values())) > 1:
        raise RuntimeError(f"the contenders made different numbers of images: {counts}")
    seconds = alternate(contenders, rounds, warmup=0)  # that was it
    label = f"{name}, {num_workers} worker{'s' * (num_workers > 1)}"
    items = (counts["ours"], "images")
    opencv = cv2.__version__ if cv2 else "none"
    return row(label, seconds, "original", items=items, workers=num_workers, opencv=opencv)


def measure(quick: bool, rounds: int) -> Iterator[dict[str, Any]]:
    """Every row."""
    sizes = (32, 4) if quick else (384, 16)
    with tempfile.TemporaryDirectory() as folder:
        if quick:
            sets = {"drawn 80 x 60": draw_photos(Path(folder), (80, 60), 8)}
        else:
            sets = {
                "photos of 224 to 384": real_photos(128),
                "drawn 640 x 480": draw_photos(Path(folder), (640, 480), 128),
                "drawn 3000 x 2000": draw_photos(Path(folder), (3000, 2000), 32),
            }
        for name, paths in sets.items():
            for num_workers in WORKERS[:1] if quick else WORKERS:
                if paths:
                    yield compare(name, paths, sizes, num_workers, rounds)
                    yield compare_tars(name, paths, sizes, num_workers, rounds)


main = program("loader", __doc__, 5, measure)

if __name__ == "__main__":
    main()
