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
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from benchmarks.measure import Cases, Row, compare
from captioning.data.annotations import Sample
from captioning.data.augmentation import AREA, ASPECT, training_transform
from captioning.data.dataset import TrainingDataset
from captioning.data.image import decode, normalise, open_image, pixels_of
from captioning.data.loader import Prefetcher, training_loader
from captioning.data.randaugment import rand_augment

ROUNDS = 5
WORKERS = {"cpu": (1, 2, 4), "cuda": (4, 8, 16)}  # {device: numbers of worker processes}
BATCHES_PER_WORKER = 4  # in an epoch


def draw_photos(folder: str, size: tuple[int, int]) -> list[str]:
    """Write 16 JPEGs of gradients, edges and noise, so that decoding takes as long as for photos.

    size: (width, height) in pixels. Returns the paths of the JPEGs.
    """
    rng, paths = np.random.default_rng(0), []
    for index in range(16):
        shapes = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        scene = np.asarray(Image.fromarray(shapes).resize(size, Image.Resampling.BICUBIC))
        noise = rng.normal(0, 6, scene.shape)
        paths.append(str(Path(folder, f"{index}.jpg")))
        Image.fromarray((scene + noise).clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def read_as_original(paths: list[str], side: int) -> Tensor:
    """Return augmented pixels (B, S, S, 3) of photos, S being `side`."""
    crop = transforms.RandomResizedCrop(side, AREA, ASPECT, InterpolationMode.BICUBIC)
    flip = transforms.RandomHorizontalFlip()
    augment = transforms.Compose([decode, crop, flip, rand_augment, pixels_of])
    images = []
    for path in paths:
        with open_image(path) as image:
            images.append(augment(image))
    return torch.stack(images)


def cases(options: argparse.Namespace) -> Cases:
    """Return a case for each photo size and number of workers."""
    device = options.device
    side, batch = (32, 4) if options.quick else (384, 16)
    sizes = [(80, 60)] if options.quick else [(640, 480), (3000, 2000)]
    worker_counts = WORKERS[device.type][: 1 if options.quick else None]

    def measure(size: tuple[int, int], workers: int) -> Row:
        count = batch * BATCHES_PER_WORKER * workers
        with tempfile.TemporaryDirectory() as folder:
            paths = (draw_photos(folder, size) * count)[:count]
            samples = [Sample(path, ("a photo",), index) for index, path in enumerate(paths)]
            dataset = TrainingDataset(samples, "", training_transform(side), seed=0)
            loader = training_loader(dataset, batch, 0, num_workers=workers)
            original = DataLoader(
                paths,
                batch,
                shuffle=True,
                num_workers=workers,
                collate_fn=functools.partial(read_as_original, side=side),
                persistent_workers=True,
                pin_memory=device.type == "cuda",
            )
            epochs = itertools.count()

            def read():
                loader.set_epoch(next(epochs))
                return sum(len(loaded["image"]) for loaded in Prefetcher(loader, device))

            def read_original():
                return sum(len(normalise(images.to(device))) for images in original)

            works = {"ours": read, "original": read_original}
            return compare(works, ["original"], options.rounds, (count, "images"))

    return {
        f"{width} x {height}, {workers} workers": functools.partial(
            measure, (width, height), workers
        )
        for (width, height), workers in itertools.product(sizes, worker_counts)
    }
