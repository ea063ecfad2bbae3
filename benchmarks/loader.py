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
from captioning.data.loader import on_device, training_loader
from captioning.data.randaugment import rand_augment

ROUNDS = 5
WORKERS = {"cpu": (1, 2, 4), "cuda": (4, 8, 16)}  # {device: numbers of worker processes}
BATCHES_PER_WORKER = 4  # in an epoch


def draw_photo(path: Path, size: tuple[int, int]) -> None:
    """Write a JPEG of gradients, edges and noise, so that decoding takes as long as for a photo.

    size: (width, height) in pixels.
    """
    rng = np.random.default_rng(0)
    shapes = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    scene = np.asarray(Image.fromarray(shapes).resize(size, Image.Resampling.BICUBIC))
    noisy = (scene + rng.normal(0, 6, scene.shape)).clip(0, 255)
    Image.fromarray(noisy.astype(np.uint8)).save(path, quality=90)


def read_as_original(paths: list[Path], side: int) -> Tensor:
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

    def measure(size: tuple[int, int], workers: int) -> Row:
        count, epochs = batch * BATCHES_PER_WORKER * workers, itertools.count()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "photo.jpg")
            draw_photo(path, size)
            samples = [Sample(str(path), ("a photo",), index) for index in range(count)]
            dataset = TrainingDataset(samples, "", training_transform(side), seed=0)
            loader = training_loader(dataset, batch, num_workers=workers)
            original = DataLoader(
                [path] * count,
                batch,
                num_workers=workers,
                collate_fn=functools.partial(read_as_original, side=side),
                persistent_workers=True,
                pin_memory=device.type == "cuda",
            )

            def read():
                loader.set_epoch(next(epochs))
                return sum(len(loaded["image"]) for loaded in on_device(loader, device))

            def read_original():
                return sum(len(normalise(images.to(device))) for images in original)

            works = {"ours": read, "original": read_original}
            return compare(works, ["original"], options.rounds, (count, "images"))

    return {
        f"{size[0]} x {size[1]}, {workers} workers": functools.partial(measure, size, workers)
        for size in ([(80, 60)] if options.quick else [(640, 480), (3000, 2000)])
        for workers in ([1] if options.quick else WORKERS[device.type])
    }
