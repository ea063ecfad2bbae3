"""Colours of photos that have a colour profile, against the matrices of CSS Color 4."""

import base64
import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from captioning.bulk.served import as_data_url
from captioning.data.augmentation import training_transform
from captioning.data.image import load_image, open_image
from tests.captioning.data.test_image import GREY, NOISE, pixels, saved

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
P3_TO_SRGB = [[1.2249, -0.2247, 0], [-0.0420, 1.0419, 0], [-0.0197, -0.0786, 1.0979]]
D50 = np.array([0.9642, 1, 0.8249])
D50_TO_SRGB = [[3.1341, -1.6174, -0.4907], [-0.9788, 1.9163, 0.0334], [0.0720, -0.2290, 1.4057]]


def fixed(*values):
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))


def display_p3():
    """Return the profile of sRGB with the primaries of Apple's Display P3."""
    profile = bytearray(SRGB)
    xyz = {b"rXYZ": (0.51512, 0.2412, -0.00105), b"gXYZ": (0.29198, 0.69225, 0.04189)}
    for name, primary in {**xyz, b"bXYZ": (0.1571, 0.06657, 0.78407)}.items():
        (start,) = struct.unpack_from(">I", SRGB, SRGB.index(name) + 4)
        profile[start + 8 : start + 20] = fixed(*primary)
    return bytes(profile)


P3 = display_p3()


def from_linear(rgb):
    rgb = np.asarray(rgb).clip(0, 1)
    return 255 * np.where(rgb < 0.0031308, rgb * 12.92, 1.055 * rgb ** (1 / 2.4) - 0.055)


def in_srgb(values):
    """Return 8-bit values of Display P3 in 8-bit sRGB."""
    values = np.asarray(values) / 255
    values = np.where(values < 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return from_linear(values @ np.transpose(P3_TO_SRGB))


def test_colours_are_converted_to_srgb_by_the_profile_in_the_file():
    assert np.abs(in_srgb(NOISE) - NOISE).max() > 30
    for kind, settings in (("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})):
        content = saved(NOISE, kind, icc_profile=P3, **settings)
        np.testing.assert_allclose(pixels(content), in_srgb(NOISE), atol=2)
        read = load_image("", io.BytesIO(content))
        np.testing.assert_array_equal(pixels(saved(read, "PNG")), read)  # it has no profile
        stored = load_image("", io.BytesIO(content), exif=False)
        np.testing.assert_array_equal(stored, NOISE)
    alpha = Image.fromarray(NOISE).convert("RGBA")
    alpha.putalpha(128)
    content = saved(alpha, "PNG", icc_profile=P3)
    np.testing.assert_allclose(pixels(content), (in_srgb(NOISE) + 255) / 2, atol=2)
    colour = (200, 100, 50)
    palette = Image.new("P", (16, 16))
    palette.putpalette(colour)
    jpeg = saved(Image.new("RGB", (16, 16), colour), "JPEG", quality=100, icc_profile=P3)
    for content in (jpeg, saved(palette, "PNG", icc_profile=P3)):
        np.testing.assert_allclose(pixels(content)[8, 8], in_srgb(colour), atol=3)


@pytest.mark.parametrize("exif", [True, False])
def test_training_converts_colours_as_evaluation_does(exif):
    colour = (200, 100, 50)
    content = saved(Image.new("RGB", (64, 64), colour), "JPEG", quality=100, icc_profile=P3)
    for augmentation in ("none", "weak", "blip"):
        transform = training_transform(16, augmentation, 0.0, exif)
        with open_image("", io.BytesIO(content)) as image:  # "blip" decodes it at a half
            centre = transform(image)[8, 8]
        np.testing.assert_allclose(centre, in_srgb(colour) if exif else colour, atol=3)


def test_servers_get_colours_in_srgb():
    content = saved(Image.new("RGB", (16, 16), (200, 100, 50)), "PNG", icc_profile=P3)
    sent = base64.b64decode(as_data_url("a.png", io.BytesIO(content)).partition(",")[2])
    np.testing.assert_allclose(
        Image.open(io.BytesIO(sent)).getpixel((8, 8)), in_srgb((200, 100, 50)), atol=3
    )


def test_a_profile_of_srgb_or_of_another_mode_or_a_damaged_one_changes_nothing():
    for profile in (SRGB, P3[:200], b"?"):
        np.testing.assert_array_equal(pixels(saved(NOISE, "PNG", icc_profile=profile)), NOISE)
    np.testing.assert_array_equal(pixels(saved(GREY, "PNG", icc_profile=P3))[..., 0], GREY)


def test_ink_is_converted_by_the_profile_in_the_file():
    """The profile maps the corners of CMYK to colours in Lab. JPEGs have inverted values."""
    nodes = np.random.default_rng(1).integers(90, 160, (16, 3), dtype=np.uint8)
    nodes[0] = 255, 128, 128  # paper is white
    ramp = bytes(range(256))
    table = b"mft1\0\0\0\0\4\3\2\0" + fixed(*np.eye(3).ravel())
    table += ramp * 4 + nodes.tobytes() + ramp * 3
    size = 144 + len(table)
    header = struct.pack(">I4x4s4s4s4s", size, b"\4\0\0\0", b"mntr", b"CMYK", b"Lab ")
    header = (header.ljust(36, b"\0") + b"acsp").ljust(68, b"\0") + fixed(*D50)
    profile = header.ljust(128, b"\0") + struct.pack(">I4sII", 1, b"A2B0", 144, len(table)) + table
    for number in (0, 5, 8, 15):  # bits: cyan, magenta, yellow, black
        ink = tuple(255 * (number >> place & 1) for place in (3, 2, 1, 0))
        photo = Image.new("CMYK", (16, 16), ink)
        lightness, a, b = nodes[number] * (100 / 255, 1, 1) - (0, 128, 128)
        y = (lightness + 16) / 116
        roots = np.array([y + a / 500, y, y - b / 200])
        xyz = D50 * np.where(roots > 6 / 29, roots**3, (roots - 4 / 29) * 3 * (6 / 29) ** 2)
        found = pixels(saved(photo, "JPEG", quality=100, icc_profile=profile))
        np.testing.assert_allclose(found[8, 8], from_linear(D50_TO_SRGB @ xyz), atol=4)
        plain = (255 - np.array(ink[:3])) * (ink[3] == 0)
        np.testing.assert_allclose(pixels(saved(photo, "JPEG", quality=100))[8, 8], plain, atol=2)
