import math

import numpy as np
import pytest
from PIL import Image

from captioning.data import randaugment

NOISE = np.random.default_rng(1).integers(0, 256, (24, 30, 3), dtype=np.uint8)
NOISE[0, 0], NOISE[0, 1] = 0, 255
FILL = [128, 128, 128]


@pytest.fixture
def sign(monkeypatch):
    """Return a function that fixes the sign of the geometric operations."""
    return lambda value: monkeypatch.setattr(randaugment, "random_sign", lambda: value)


def apply(operation, pixels=NOISE):
    return np.asarray(operation(Image.fromarray(pixels)))


def warp(pixels, source):
    """Return the image whose pixel at (x, y) is `pixels` at source(x, y), bilinear, one by one.

    A position more than half a pixel outside gets FILL, up to there the edge is continued; at half
    a pixel either is right, and the result is NaN.
    """
    height, width = pixels.shape[:2]
    result = np.empty(pixels.shape)
    for y in range(height):
        for x in range(width):
            u, v = source(x, y)
            if min(abs(u + 0.5), abs(u + 0.5 - width), abs(v + 0.5), abs(v + 0.5 - height)) < 1e-9:
                result[y, x] = np.nan
                continue
            if not (-0.5 <= u < width - 0.5 and -0.5 <= v < height - 0.5):
                result[y, x] = FILL
                continue
            u0, v0 = math.floor(u), math.floor(v)
            corner = 0.0
            for column, row, weight in (
                (u0, v0, (1 - u + u0) * (1 - v + v0)),
                (u0 + 1, v0, (u - u0) * (1 - v + v0)),
                (u0, v0 + 1, (1 - u + u0) * (v - v0)),
                (u0 + 1, v0 + 1, (u - u0) * (v - v0)),
            ):
                column, row = min(max(column, 0), width - 1), min(max(row, 0), height - 1)
                corner = corner + weight * pixels[row, column]
            result[y, x] = corner
    return result


def assert_equal_up_to_rounding(actual, expected):
    decided = ~np.isnan(expected)
    assert decided.mean() > 0.95
    np.testing.assert_allclose(actual[decided], expected[decided], atol=1.01)


@pytest.mark.parametrize("direction", [1, -1])
def test_shear_is_about_the_first_pixel(sign, direction):
    """Row y moves by 0.15 y columns (0.3 * 5/10), so that row 0 stays."""
    sign(direction)
    factor = 0.15 * direction
    along_x, along_y = apply(randaugment.shear_x), apply(randaugment.shear_y)
    assert_equal_up_to_rounding(along_x, warp(NOISE, lambda x, y: (x + factor * y, y)))
    assert_equal_up_to_rounding(along_y, warp(NOISE, lambda x, y: (x, y + factor * x)))
    np.testing.assert_array_equal(along_x[0], NOISE[0])
    np.testing.assert_array_equal(along_y[:, 0], NOISE[:, 0])


@pytest.mark.parametrize("direction", [1, -1])
def test_rotate_turns_fifteen_degrees_about_the_middle(sign, direction):
    sign(direction)
    sine, cosine = math.sin(math.radians(15 * direction)), math.cos(math.radians(15))

    def source(x, y):
        u, v = x - 14.5, y - 11.5
        return 14.5 + u * cosine + v * sine, 11.5 - u * sine + v * cosine

    assert_equal_up_to_rounding(apply(randaugment.rotate), warp(NOISE, source))
