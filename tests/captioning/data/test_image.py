"""Images decoded and resized; those refused are in tests/captioning/bad_input/test_images.py."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from captioning.data import MEAN, STD, evaluation_transform, load_image
from captioning.data.image import open_image
from captioning.runtime.errors import UserError
from captioning.runtime.start import ignore_image_sizes
from tests.programs import raises_line

GREY_RAMP = np.arange(0, 256, dtype=np.uint8).reshape(16, 16)
NOISE = np.random.default_rng(0).integers(0, 256, (12, 18, 3), dtype=np.uint8)


def pixels(path):
    image = load_image(path)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("suffix", ["png", "tiff", "pgm"])
def test_values_of_sixteen_bits_are_scaled_to_eight(tmp_path, suffix):
    path, values = tmp_path / f"grey.{suffix}", GREY_RAMP.astype(np.uint16) * 256 + 77
    if suffix == "pgm":
        path.write_bytes(b"P5 16 16 65535\n" + values.astype(">u2").tobytes())
    else:
        Image.fromarray(values).save(path)
    np.testing.assert_array_equal(pixels(path), np.repeat(GREY_RAMP[..., None], 3, axis=2))


def test_an_image_of_floats_is_refused(tmp_path):
    Image.fromarray(np.random.rand(8, 8).astype(np.float32)).save(tmp_path / "float.tiff")
    with raises_line(UserError, "float.tiff: not a readable image (its pixels are floats"):
        load_image(tmp_path / "float.tiff")


def test_no_permission_is_one_line(tmp_path, monkeypatch):
    Image.fromarray(NOISE).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    message = r"a\.png: not a readable image \(Permission denied\): check its permissions$"
    with pytest.raises(UserError, match=message):
        open_image(tmp_path / "a.png")


def test_black_and_white_is_scaled_and_alpha_is_dropped(tmp_path):
    Image.fromarray(GREY_RAMP > 99).save(tmp_path / "bits.png")
    assert (pixels(tmp_path / "bits.png") == 255 * (GREY_RAMP > 99)[..., None]).all()
    alpha = np.full((12, 18, 1), 7, np.uint8)
    Image.fromarray(np.concatenate([NOISE, alpha], axis=2)).save(tmp_path / "alpha.png")
    np.testing.assert_array_equal(pixels(tmp_path / "alpha.png"), NOISE)


def test_exif_orientation_is_not_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.fromarray(NOISE).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(pixels(tmp_path / "turned.png"), NOISE)


def test_programs_get_no_warning_of_a_large_image(tmp_path, recwarn):
    Image.new("1", (9500, 9500)).save(tmp_path / "large.png")
    ignore_image_sizes()
    open_image(tmp_path / "large.png").close()
    assert not recwarn.list


@pytest.mark.parametrize("image_size", [8, 30])
def test_evaluation_transform_is_a_normalised_bicubic_resize(image_size):
    image = Image.fromarray(NOISE)
    resized = np.asarray(image.resize((image_size, image_size), Image.BICUBIC))
    expected = ((resized / 255 - MEAN) / STD).transpose(2, 0, 1)
    result = evaluation_transform(image_size)(image)
    assert result.dtype == torch.float32
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)
