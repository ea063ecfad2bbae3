"""Converts images of any depth and colour space, with or without transparency, to 8-bit RGB."""

import io
from functools import lru_cache
from typing import Optional

import numpy as np
from PIL import Image, ImageChops, ImageCms

SAMPLE_MIN, SAMPLE_MAX, SAMPLE_BITS, PHOTOMETRIC = 340, 341, 258, 262  # tags of TIFF
WHITE_IS_ZERO = 0
BITS = (8, 10, 12, 14, 16)  # depths of sensors, which files of 16 or 32 bits may hold unscaled
MIN_DEEP_VALUE = 16  # of 255: colours of 12 bits in 16 stay below
# Colours by which `_to_srgb` recognises profiles of sRGB: they change none by more than TOLERANCE.
PROBE = Image.fromarray(np.indices((16, 16, 16), np.uint8).T.reshape(64, 64, 3) * np.uint8(17))
TOLERANCE = 2  # of 255


def to_rgb(image: Image.Image, use_profile: bool = True) -> Image.Image:
    """Return the first frame of an opened image in RGB, composed on white.

    use_profile: whether to convert the colours to sRGB, if the image has a colour profile. Raises
    ValueError if the range of the values is not known, and Pillow's errors.
    """
    is_deep, alpha, transform = image.mode[0] in "IF", None, None
    if not is_deep:
        _check_deep_colours(image)
    image.load()  # a PNG's EXIF data may follow its pixels
    info = dict(image.info)
    hidden, profile = info.pop("transparency", None), info.pop("icc_profile", None)
    if is_deep:
        if hidden is not None:
            alpha = Image.fromarray(np.asarray(image) != hidden)
        image = Image.fromarray(_scaled(image))
    mode = {"1": "L", "LA": "L", "L": "L", "CMYK": "CMYK"}.get(image.mode, "RGB")
    if profile and use_profile:
        transform = _to_srgb(profile, mode)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        alpha = image.getchannel("A")
    if transform:
        image = ImageCms.applyTransform(image.convert(mode), transform)
    image = image.convert("RGB")
    if alpha:
        image = Image.composite(image, Image.new("RGB", image.size, "white"), alpha)
    image.info = info  # may contain the EXIF data
    return image


@lru_cache(maxsize=8)
def _to_srgb(profile: bytes, mode: str) -> Optional[ImageCms.ImageCmsTransform]:
    """Return the transform of colours in a mode, by their ICC profile, to sRGB.

    Returns None if the profile is damaged, of another mode, or that of sRGB.
    """
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (OSError, ImageCms.PyCMSError):
        return None
    probe = PROBE.convert(mode)
    changed = ImageChops.difference(probe.convert("RGB"), ImageCms.applyTransform(probe, transform))
    is_srgb = max(high for _, high in changed.getextrema()) <= TOLERANCE
    return None if is_srgb else transform


def _scaled(image: Image.Image) -> np.ndarray:
    """Return the values of a grey image of integers or floats, scaled to uint8."""
    values = np.asarray(image)
    low, high = _declared_range(image) or _range_of(values)
    levels = high - low + (values.dtype.kind != "f")
    scaled = ((values.astype(np.float32) - low) * (256 / levels)).clip(0, 255).astype(np.uint8)
    # Pillow inverts only 8 bits and fewer.
    is_inverted = getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == WHITE_IS_ZERO
    return 255 - scaled if is_inverted else scaled


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
