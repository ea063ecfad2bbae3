"""Training images per second of our loader, compared with the original's and webdataset's.

    bash scripts/benchmark.sh loader [--quick]

All contenders read the same files and return normalised float batches (B, 3, 384, 384) on the
device. A round is one epoch. "original" decodes and augments like the original (`input: exact`,
which needs OpenCV) in a plain DataLoader. "decoding alone" only decodes, a lower bound of the time.
From tars, our loader and webdataset's process photos in the same way.
"""

import argparse
import functools
import io
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Callable
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.gpu.packages import is_installed
from benchmarks.measure import Work, compare
from benchmarks.topic import Cases, program
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

WORKERS = {"cpu": (1, 2, 4), "cuda": (4, 8, 16)}
BATCHES_PER_WORKER = 4


def draw_photos(folder: Path, size: tuple[int, int], count: int, differing: int = 16) -> list[Path]:
    """Write JPEGs that take as long to decode as photos of the size: gradients, edges, noise."""
    random = np.random.default_rng(0)
    paths = []
    for number in range(min(count, differing)):
        shapes = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        scene = np.asarray(Image.fromarray(shapes).resize(size, Image.Resampling.BICUBIC))
        noise = random.normal(0, 6, scene.shape)
        paths.append(folder / f"{size[0]}_{number}.jpg")
        Image.fromarray((scene + noise).clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return [paths[number % differing] for number in range(count)]


class Photos(Dataset):
    """The transformed image of each path."""

    def __init__(self, paths: Sequence[Path], transform: Callable):
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open_image(self.paths[index]) as image:
            return self.transform(image)


def decoded(image: Image.Image) -> int:
    image.convert("RGB")
    return 0


class Epochs:
    """A `benchmarks.measure.Work`: one epoch of our loader, with batches on the device."""

    def __init__(self, dataset: Any, batch: int, workers: int, device: torch.device):
        self.loader = training_loader(dataset, batch, 0, num_workers=workers)
        self.device, self.epoch = device, 0

    def __call__(self) -> int:
        self.loader.set_epoch(self.epoch)
        self.epoch += 1
        return sum(len(batch["image"]) for batch in Prefetcher(self.loader, self.device))


def plain(batches: Iterable, device: torch.device) -> Work:
    """A `benchmarks.measure.Work`: one epoch of batches of bytes, converted to floats."""
    return lambda: sum(len(normalise(batch.to(device))) for batch in batches)


def of_files(paths: Sequence[Path], side: int, batch: int, workers: int, device: Any) -> dict:
    samples = [Sample(str(path), ("a photo",), number) for number, path in enumerate(paths)]
    dataset = TrainingDataset(samples, "", training_transform(side), seed=0)
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    decoding = DataLoader(Photos(paths, decoded), batch, **options)
    original = DataLoader(
        Photos(paths, training_transform(side, exact=True)),
        batch,
        shuffle=True,
        pin_memory=device.type == "cuda",
        **options,
    )
    return {
        "ours": Epochs(dataset, batch, workers, device),
        "original": plain(original, device),
        "decoding alone": lambda: sum(len(image) for image in decoding),
    }


def of_tars(
    paths: Sequence[Path], folder: Path, side: int, batch: int, workers: int, device: Any
) -> dict[str, Work]:
    """{contender: work} that reads tars.

    webdataset's pipeline shuffles shards and a buffer of 1000 samples.
    """
    from webdataset import TarWriter, WebDataset

    tars = [str(folder / f"{number:05d}.tar") for number in range(2 * workers)]
    for number, name in enumerate(tars):
        with TarWriter(name, encoder=False) as writer:
            for place, path in enumerate(paths[number :: len(tars)]):
                data = {"jpg": path.read_bytes(), "txt": b"a photo"}
                writer.write({"__key__": f"{number:05d}{place:05d}", **data})
    transform = training_transform(side)

    def transformed(sample: dict[str, Any]) -> torch.Tensor:
        return transform(open_image(sample["__key__"], io.BytesIO(sample["jpg"])))

    shuffled = WebDataset(tars, shardshuffle=len(tars)).shuffle(1000)
    options = {"num_workers": workers, "persistent_workers": True}
    dataset = ShardDataset(Shards(tars), "", transform, seed=0)
    return {
        "ours": Epochs(dataset, batch, workers, device),
        "webdataset": plain(DataLoader(shuffled.map(transformed), batch, **options), device),
    }


def cases(options: argparse.Namespace) -> Cases:
    """A row for each photo size and number of workers, for files and for tars."""
    side, batch, device = (32, 4, options.device) if options.quick else (384, 16, options.device)
    sizes = [(80, 60)] if options.quick else [(640, 480), (3000, 2000)]
    counts = WORKERS[device.type][: 1 if options.quick else None]

    def row(size: tuple[int, int], workers: int, tars: bool) -> dict[str, Any]:
        photos = batch * BATCHES_PER_WORKER * workers
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            paths = draw_photos(folder, size, photos)
            with patch.dict(os.environ, XDG_CACHE_HOME=temporary):
                works = (
                    of_tars(paths, folder, side, batch, workers, device)
                    if tars
                    else of_files(paths, side, batch, workers, device)
                )
                made = works["ours"]()
                if made != photos:
                    raise RuntimeError(f"{made} of {photos} images came")
                peers = ("original", "webdataset")
                return compare(works, peers, options.rounds, (photos, "images"))

    found: dict[str, Any] = {}
    for size in sizes:
        for workers in counts:
            for tars in (False, True) if is_installed("webdataset") else (False,):
                name = f"{size[0]} x {size[1]}{', in tars' * tars}, {workers} workers"
                found[name] = functools.partial(row, size, workers, tars)
    return found


main = program("loader", __doc__, 5, cases)

if __name__ == "__main__":
    sys.exit(main())
