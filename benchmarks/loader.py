"""Training batches a second of our loader beside the original's.

    bash scripts/benchmark.sh loader [--quick]

Every contender reads the same files and hands out float batches (B, 3, 384, 384), normalised, one
epoch a round. "decoding alone" is the floor: whole images as RGB, and nothing made of them.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
import torch
from PIL import Image

from benchmarks.measure import alternate, program, row
from benchmarks.original_input import Photos, cv2, original_loader, plain_loader
from captioning.data import Prefetcher, Sample, TrainingDataset, training_loader, training_transform

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


main = program("loader", __doc__, 5, measure)

if __name__ == "__main__":
    main()
