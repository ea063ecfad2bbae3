"""Measures training images per second of our loader and of one like the original's.

    bash scripts/benchmark.sh loader [--quick]

Both contenders read the same files and return normalised float batches (B, 3, 384, 384) on the
device. A round is one epoch. "original" decodes whole photos and resizes them with Pillow, like the
original implementation, in a plain DataLoader. Both have the same RandAugment.
"""

import argparse
import functools
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from benchmarks.measure import Cases, Work, compare
from captioning.data.annotations import Sample
from captioning.data.augmentation import AREA, ASPECT, training_transform
from captioning.data.dataset import TrainingDataset
from captioning.data.image import decode, normalise, open_image, pixels_of
from captioning.data.loader import Prefetcher, training_loader
from captioning.data.randaugment import rand_augment

ROUNDS = 5
WORKERS = {"cpu": (1, 2, 4), "cuda": (4, 8, 16)}  # {device: numbers of worker processes}
BATCHES_PER_WORKER = 4  # in an epoch


def draw_photos(folder: Path, size: tuple[int, int]) -> list[Path]:
    """Write 16 JPEGs of gradients, edges and noise, so that decoding takes as long as for photos.

    size: (width, height) in pixels. Returns the paths of the JPEGs.
    """
    rng = np.random.default_rng(0)
    paths = []
    for index in range(16):
        shapes = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        scene = np.asarray(Image.fromarray(shapes).resize(size, Image.Resampling.BICUBIC))
        noise = rng.normal(0, 6, scene.shape)
        paths.append(folder / f"{size[0]}_{index}.jpg")
        Image.fromarray((scene + noise).clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def contenders(
    paths: Sequence[Path], side: int, batch: int, workers: int, device: torch.device
) -> dict[str, Work]:
    """Return {contender: work}. A work reads one epoch and returns the number of images.

    side: width and height of the images in a batch. batch: batch size. workers: number of worker
    processes.
    """
    samples = [Sample(str(path), ("a photo",), index) for index, path in enumerate(paths)]
    dataset = TrainingDataset(samples, "", training_transform(side), seed=0)
    loader, epochs = training_loader(dataset, batch, 0, num_workers=workers), itertools.count()
    crop = transforms.RandomResizedCrop(side, AREA, ASPECT, InterpolationMode.BICUBIC)
    flip = transforms.RandomHorizontalFlip()
    transform = transforms.Compose([decode, crop, flip, rand_augment, pixels_of])

    def read(paths):
        images = []
        for path in paths:
            with open_image(path) as image:
                images.append(transform(image))
        return torch.stack(images)

    original = DataLoader(
        paths,
        batch,
        shuffle=True,
        num_workers=workers,
        collate_fn=read,
        persistent_workers=True,
        pin_memory=device.type == "cuda",
    )

    def ours():
        loader.set_epoch(next(epochs))
        return sum(len(loaded["image"]) for loaded in Prefetcher(loader, device))

    return {
        "ours": ours,
        "original": lambda: sum(len(normalise(images.to(device))) for images in original),
    }


def cases(options: argparse.Namespace) -> Cases:
    """Return a case for each photo size and number of workers."""
    side, batch = (32, 4) if options.quick else (384, 16)
    sizes = [(80, 60)] if options.quick else [(640, 480), (3000, 2000)]
    worker_counts = WORKERS[options.device.type][: 1 if options.quick else None]

    def measure(size, workers):
        num_images = batch * BATCHES_PER_WORKER * workers
        with tempfile.TemporaryDirectory() as folder:
            paths = (draw_photos(Path(folder), size) * num_images)[:num_images]
            works = contenders(paths, side, batch, workers, options.device)
            if works["ours"]() != num_images:
                raise RuntimeError(f"an epoch of ours does not have {num_images} images")
            return compare(works, ["original"], options.rounds, (num_images, "images"))

    return {
        f"{size[0]} x {size[1]}, {workers} workers": functools.partial(measure, size, workers)
        for size, workers in itertools.product(sizes, worker_counts)
    }
