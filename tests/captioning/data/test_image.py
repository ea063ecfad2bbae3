"""Images decoded to RGB; those refused are in tests/captioning/bad_input/test_images.py."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from captioning.data import image
from captioning.data.augmentation import training_transform
from captioning.data.image import load_image
from captioning.runtime.errors import UserError
from tests.programs import raises_line

GREY = np.arange(0, 256, dtype=np.uint8).reshape(16, 16)
NOISE = np.random.default_rng(0).integers(0, 256, (12, 18, 3), dtype=np.uint8)
SMALLEST, LARGEST = 340, 341  # tags of TIFF: SMinSampleValue and SMaxSampleValue


def pixels(content, name="a photo"):
    read = load_image(name, io.BytesIO(content))
    assert read.mode == "RGB"
    return np.asarray(read)


def saved(values, kind, **settings):
    file = io.BytesIO()
    picture = values if isinstance(values, Image.Image) else Image.fromarray(values)
    picture.save(file, kind, **settings)
    return file.getvalue()


def deep_png(values):
    """Return a PNG of 16 bits per colour, which Pillow does not write."""
    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.tobytes() for row in values.astype(">u2"))
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        content += struct.pack(">I", len(data)) + kind + data + checksum
    return content


# How a TIFF declares that its highest, or lowest, value is white.
PHOTOMETRIC = [struct.pack("<HHIHH", 262, 3, 1, lowest, 0) for lowest in (1, 0)]
WIDE, WIDEST, FLOATS = (GREY.astype(kind) for kind in (np.uint16, np.int32, np.float32))
SCALED = {
    "12 of 16 bits": saved(WIDE * 16 + 5, "PNG"),
    "14 of 16 bits, as of thermal cameras": saved(WIDE * 64 + 50, "TIFF"),
    "8 of 32 bits": saved(WIDEST, "TIFF"),
    "declared": saved(WIDE * 3 + 100, "TIFF", tiffinfo={SMALLEST: 100, LARGEST: 867}),
    "declared floats": saved(FLOATS - 128, "TIFF", tiffinfo={SMALLEST: -128.0, LARGEST: 127.0}),
    "floats to 1": saved(FLOATS / 255, "TIFF"),
    "white is zero": saved(65535 - WIDE * 257, "TIFF").replace(*PHOTOMETRIC),
    "floats to 255": saved(FLOATS, "TIFF"),
    "dark PGM": b"P5 16 16 65535\n" + (WIDE // 16 * 256).astype(">u2").tobytes(),
}


@pytest.mark.parametrize("name", SCALED)
def test_values_are_scaled_from_the_range_that_is_declared_or_that_holds_them(name):
    expected = GREY // 16 if name.startswith("dark") else GREY
    np.testing.assert_array_equal(pixels(SCALED[name]), np.repeat(expected[..., None], 3, axis=2))


def test_values_of_an_unknown_range_are_refused():
    for content, reason in (
        (saved(FLOATS * 2, "TIFF"), "values from 0 to 510, of no known range"),
        (saved(WIDEST - 1, "TIFF"), "values from -1 to 254, of no known range"),
        (deep_png(NOISE.astype(int) * 16), "16-bit colours that are almost black"),
    ):
        with raises_line(UserError, f"a photo: not a readable image ({reason}: scale them to 8"):
            pixels(content)


def test_colours_of_8_and_16_bits_are_kept():
    np.testing.assert_array_equal(pixels(saved(NOISE, "PNG")), NOISE)
    np.testing.assert_array_equal(pixels(deep_png(NOISE.astype(int) * 257)), NOISE)


def drawing(mode):
    """Return a PNG, all of it black: the left half is opaque, the right half transparent."""
    picture = Image.new({"palette": "P"}.get(mode, mode), (8, 4))
    picture.paste((9, 0, 0) if mode == "RGB" else 1, (4, 0, 8, 4))
    if mode == "RGBA":
        picture.putalpha(Image.fromarray(np.array([[255] * 4 + [0] * 4] * 4, np.uint8)))
        return saved(picture, "PNG")
    if mode == "palette":
        picture.putpalette([0] * 6)
        return saved(picture, "PNG", transparency=b"\xff\0")
    return saved(picture, "PNG", transparency=picture.getpixel((4, 0)))


@pytest.mark.parametrize("mode", ["RGBA", "palette", "I;16", "RGB"])
def test_transparency_is_composed_on_white(mode):
    found = pixels(drawing(mode))
    assert (found[:, :4] == 0).all() and (found[:, 4:] == 255).all()
    half = pixels(saved(Image.new("RGBA", (2, 2), (200, 0, 100, 128)), "PNG"))
    np.testing.assert_allclose(half[0, 0], [227, 127, 177], atol=1)


@pytest.mark.parametrize("orientation", range(1, 10))
def test_photos_are_turned_upright_unless_they_are_wanted_as_stored(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = [NOISE, NOISE[:, ::-1], NOISE[::-1, ::-1], NOISE[::-1], NOISE.swapaxes(0, 1)]
    turned += [np.rot90(NOISE, -1), np.rot90(NOISE, 2).swapaxes(0, 1), np.rot90(NOISE), NOISE]
    for mode in ("RGB", "RGBA"):
        content = saved(Image.fromarray(NOISE).convert(mode), "PNG", exif=exif)
        np.testing.assert_array_equal(pixels(content), turned[orientation - 1])
        stored = load_image("", io.BytesIO(content), exif=False)
        np.testing.assert_array_equal(np.asarray(stored), NOISE)


def test_heic_is_read_where_pillow_heif_is_installed():
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.new("RGB", (64, 64), (200, 30, 60))).save(file)
    np.testing.assert_allclose(pixels(file.getvalue())[32, 32], [200, 30, 60], atol=6)


def test_without_pillow_heif_the_line_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    image._formats.cache_clear()
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    with raises_line(UserError, "IMG_1.HEIC: not a readable image (none of JPEG") as error:
        pixels(b"\0\0\0\x18ftypheic", "IMG_1.HEIC")
    image._formats.cache_clear()
    assert str(error.value).endswith("JPEG2000): pip install pillow-heif")


SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
# A profile of sRGB in which red and green, whose names are b"rXYZ" and b"gXYZ", are exchanged.
EXCHANGED = SRGB.replace(b"rXYZ", b"____").replace(b"gXYZ", b"rXYZ").replace(b"____", b"gXYZ")


def fixed(*values):
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))


def test_colours_are_converted_to_srgb_by_the_profile_in_the_file():
    for kind in ("PNG", "TIFF"):
        content = saved(NOISE, kind, icc_profile=EXCHANGED)
        np.testing.assert_allclose(pixels(content), NOISE[..., [1, 0, 2]], atol=2)
        read = load_image("", io.BytesIO(content))
        np.testing.assert_array_equal(pixels(saved(read, "PNG")), read)  # it has no profile
        stored = load_image("", io.BytesIO(content), exif=False)
        np.testing.assert_array_equal(stored, NOISE)


@pytest.mark.parametrize("exif", [True, False])
def test_training_converts_colours_as_evaluation_does(exif):
    colour = (200, 100, 50)
    content = saved(Image.new("RGB", (64, 64), colour), "JPEG", quality=100, icc_profile=EXCHANGED)
    for augmentation in ("none", "weak", "blip"):
        transform = training_transform(16, augmentation, 0.0, exif)
        with image.open_image("", io.BytesIO(content)) as photo:  # "blip" decodes it at a half
            centre = transform(photo)[8, 8]
        np.testing.assert_allclose(centre, (100, 200, 50) if exif else colour, atol=3)


def test_damaged_exif_data_and_profiles_that_do_not_apply_leave_the_pixels():
    for data in (b"Exif\0\0II*\0\xff\xff\xff\xff", b"x"):
        np.testing.assert_array_equal(pixels(saved(NOISE, "PNG", exif=data)), NOISE)
    for profile in (SRGB, EXCHANGED[:200]):
        np.testing.assert_array_equal(pixels(saved(NOISE, "PNG", icc_profile=profile)), NOISE)
    np.testing.assert_array_equal(pixels(saved(GREY, "PNG", icc_profile=EXCHANGED))[..., 0], GREY)


def test_ink_is_converted_by_the_profile_in_the_file():
    """The profile maps each ink on white paper to one grey of Lab, which is 119 in sRGB."""
    paper, grey, ramp = bytes([255, 128, 128]), bytes([128] * 3), bytes(range(256))
    table = b"mft1\0\0\0\0\4\3\2\0" + fixed(*np.eye(3).ravel())
    table += ramp * 4 + paper + grey * 15 + ramp * 3
    size = 144 + len(table)
    header = struct.pack(">I4x4s4s4s4s", size, b"\4\0\0\0", b"mntr", b"CMYK", b"Lab ")
    header = (header.ljust(36, b"\0") + b"acsp").ljust(68, b"\0") + fixed(0.9642, 1, 0.8249)
    profile = header.ljust(128, b"\0") + struct.pack(">I4sII", 1, b"A2B0", 144, len(table)) + table
    black = Image.new("CMYK", (16, 16), (0, 0, 0, 255))
    for settings, expected in (({"icc_profile": profile}, 119), ({}, 0)):
        found = pixels(saved(black, "JPEG", quality=100, **settings))
        np.testing.assert_allclose(found[8, 8], [expected] * 3, atol=2)
