"""Colours of photos that have a colour profile, against the matrices of CSS Color 4."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from captioning.data.augmentation import training_transform
from captioning.data.image import load_image, open_image
from tests.captioning.data.test_image import GREY, NOISE, pixels, saved

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
P3_TO_SRGB = [[1.2249, -0.2247, 0], [-0.0420, 1.0419, 0], [-0.0197, -0.0786, 1.0979]]


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


def in_srgb(values):
    """Return 8-bit values of Display P3 in 8-bit sRGB."""
    values = np.asarray(values) / 255
    values = np.where(values < 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    rgb = (values @ np.transpose(P3_TO_SRGB)).clip(0, 1)
    return 255 * np.where(rgb < 0.0031308, rgb * 12.92, 1.055 * rgb ** (1 / 2.4) - 0.055)


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


@pytest.mark.parametrize("exif", [True, False])
def test_training_converts_colours_as_evaluation_does(exif):
    colour = (200, 100, 50)
    content = saved(Image.new("RGB", (64, 64), colour), "JPEG", quality=100, icc_profile=P3)
    for augmentation in ("none", "weak", "blip"):
        transform = training_transform(16, augmentation, 0.0, exif)
        with open_image("", io.BytesIO(content)) as image:  # "blip" decodes it at a half
            centre = transform(image)[8, 8]
        np.testing.assert_allclose(centre, in_srgb(colour) if exif else colour, atol=3)


def test_a_profile_of_srgb_or_of_another_mode_or_a_damaged_one_changes_nothing():
    for profile in (SRGB, P3[:200], b"?"):
        np.testing.assert_array_equal(pixels(saved(NOISE, "PNG", icc_profile=profile)), NOISE)
    np.testing.assert_array_equal(pixels(saved(GREY, "PNG", icc_profile=P3))[..., 0], GREY)


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
