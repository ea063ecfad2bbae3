"""Converts images of any depth, with or without transparency, to 8-bit RGB."""

from typing import Optional

import numpy as np
from PIL import Image

SAMPLE_MIN, SAMPLE_MAX, SAMPLE_BITS = 340, 341, 258  # tags of TIFF
BITS = (8, 10, 12, 14, 16)  # depths of sensors, which files of 16 or 32 bits may hold unscaled
MIN_DEEP_VALUE = 16  # of 255: colours of 12 bits in 16 stay below


def to_rgb(image: Image.Image) -> Image.Image:
    """Return the first frame of an opened image in RGB, composed on white.

    Raises ValueError if the range of the values is not known, and Pillow's errors.
    """
    info = {key: value for key, value in image.info.items() if key != "transparency"}
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = Image.fromarray(_scaled(image))
    else:
        _check_deep_colours(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image)
        image = white
    image = image.convert("RGB")
    image.info = info  # may contain the EXIF data
    return image


def _scaled(image: Image.Image) -> np.ndarray:
    """Return the values of a grey image of integers or floats, scaled to uint8."""
    values = np.asarray(image)
    low, high = _declared_range(image) or _range_of(values)
    levels = high - low + (values.dtype.kind != "f")
    return ((values.astype(np.float32) - low) * (256 / levels)).clip(0, 255).astype(np.uint8)


def _declared_range(image: Image.Image) -> Optional[tuple[float, float]]:
    """Return the lowest and highest value that the file declares; None if it declares none."""
    if image.format in ("PPM", "JPEG2000") and image.mode != "F":
        return 0, 65535  # Pillow has scaled them by the file's maximum or precision
    tags = getattr(image, "tag_v2", {})
    (low,), (high,) = tags.get(SAMPLE_MIN, (0,))[:1], tags.get(SAMPLE_MAX, (0,))[:1]
    if low < high:
        return low, high
    (bits,) = tags.get(SAMPLE_BITS, (16,))[:1]
    return (0, 2**bits - 1) if bits < 16 else None


def _range_of(values: np.ndarray) -> tuple[float, float]:
    """Return the smallest of the usual ranges that holds the values. Raises ValueError."""
    low, high = values.min(), values.max()
    limits = [1, 255] if values.dtype.kind == "f" else [2**bits - 1 for bits in BITS]
    for limit in limits:
        if low >= 0 and high <= limit:
            return 0, limit
    raise ValueError(f"values from {low:g} to {high:g}, of no known range: scale them to 8 bits")


def _check_deep_colours(image: Image.Image) -> None:
    """Raise ValueError for colours of 12 bits or fewer in 16, of which Pillow reads 4 or fewer."""
    if ";16" in str(getattr(image, "tile", "")):
        highest = max(high for _, high in image.getextrema()[:3])
        if 0 < highest < MIN_DEEP_VALUE:
            raise ValueError("16-bit colours that are almost black: scale them to 8 bits")
