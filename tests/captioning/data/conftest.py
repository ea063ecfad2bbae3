"""Small photos and samples that the data tests share, and the comparison of batches."""

import numpy as np
import pytest
import torch
from PIL import Image

from captioning.data.annotations import Sample

KEYS = ("captions", "image_id", "index")


def assert_same_batches(first, second, keys=KEYS):
    assert len(first) == len(second)
    for one, other in zip(first, second):
        assert torch.equal(one["image"], other["image"])
        assert [one[key] for key in keys] == [other[key] for key in keys]


@pytest.fixture
def photos(tmp_path):
    """Return a folder of ten photos of noise, 0.png to 9.png, 24 x 20."""
    noise = np.random.default_rng(0)
    for number in range(10):
        pixels = noise.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    return tmp_path


@pytest.fixture
def samples():
    """Return samples of the ten photos: number i has 1 + i % 3 captions, 19 in all."""
    return [
        Sample(f"{i}.png", tuple(f"caption {j} of {i}" for j in range(1 + i % 3)), 100 + i)
        for i in range(10)
    ]
