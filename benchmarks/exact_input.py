"""How the pixels of `input: fast` differ from those of `input: exact`, the original's.

    python -m benchmarks.exact_input photos/*.jpg

Means over all values of all photos of the absolute difference, of 255. The same draws make the same
crop, flip and operations in both, so that nothing else differs.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from captioning.data import training_transform
from captioning.data.image import open_image
from captioning.data.randaugment import EXACT_OPERATIONS, OPERATIONS, check_opencv
from captioning.runtime.program import exit_code

NAMES = [operation.__name__ for operation in OPERATIONS]


def drawn(transform: Callable, path: Path, seed: int) -> Tensor:
    """uint8 (S, S, 3) of a photo; the draws depend on the seed alone."""
    torch.manual_seed(seed)
    with open_image(path) as image:
        return transform(image)


def difference(first, second) -> float:
    return float(np.abs(np.asarray(first, np.int16) - np.asarray(second, np.int16)).mean())


def by_operation(pixels: np.ndarray, seed: int) -> dict[str, float]:
    """What each operation alone makes of an image (S, S, 3), here and there."""
    found = {}
    for name, fast, exact in zip(NAMES, OPERATIONS, EXACT_OPERATIONS):
        images = []
        for operation in (fast, exact):
            torch.manual_seed(seed)  # the sign
            images.append(operation(Image.fromarray(pixels)))
        found[name] = difference(*images)
    return found


def measure(paths: Sequence[Path], size: int) -> str:
    """A table. Raises UserError for what is no photo."""
    fast, exact = training_transform(size), training_transform(size, exact=True)
    rows: dict[str, list[float]] = {"crop and flip": [], "whole augmentation": []}
    seconds = {"fast": 0.0, "exact": 0.0}
    changed = white = 0
    for seed, path in enumerate(paths):
        images = []
        for name, transform in (("fast", fast), ("exact", exact)):
            began = time.perf_counter()
            images.append(drawn(transform, path, seed))
            seconds[name] += time.perf_counter() - began
        rows["whole augmentation"].append(difference(*images))
        changed += rows["whole augmentation"][-1] > 10
        with patch("captioning.data.augmentation.rand_augment", lambda image, *_: image):
            crops = [drawn(transform, path, seed) for transform in (fast, exact)]
        rows["crop and flip"].append(difference(*crops))
        pixels = crops[1].numpy()
        for name, value in by_operation(pixels, seed).items():
            rows.setdefault(name, []).append(value)
        white += (pixels.min((0, 1)) > 0).mean()  # channels without a 0
    count = len(paths)
    lines = [f"{name:18}  {np.mean(values):7.3f}" for name, values in rows.items()]
    lines += [
        f"{changed / count:.1%} of the images differ by more than 10 in the mean",
        f"{white / count:.1%} of the channels have no 0: the original's auto-contrast whitens them",
        ", ".join(f"{name} {1000 * s / count:.1f} ms an image" for name, s in seconds.items()),
    ]
    return "\n".join(lines)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program on its arguments (those of the command line); return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact_input", description=__doc__)
    parser.add_argument("photos", nargs="+", type=Path)
    parser.add_argument("--size", type=int, default=384, help="side of the square (default: 384)")
    arguments = parser.parse_args(argv)
    if arguments.size < 1:
        parser.error("--size has to be 1 or more")

    def program() -> None:
        check_opencv()
        print(measure(arguments.photos, arguments.size))

    return exit_code(program, "stopped")


if __name__ == "__main__":
    sys.exit(main())
