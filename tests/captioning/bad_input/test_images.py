"""Images of every kind: read for what they are, or refused in one line that names the file."""

import io
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from captioning.data.image import load_image
from captioning.runtime.errors import UserError
from tests.programs import raises_line

RED = (255, 0, 0)
SQUARE = Image.new("RGB", (8, 8), RED)


def encoded(image, kind, **settings):
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def film(kind, count=2, **settings):
    """Return an image of so many frames, the first of which is red."""
    more = [Image.new("RGB", (8, 8), (0, 0, 255))] * (count - 1)
    return encoded(SQUARE, kind, save_all=True, append_images=more, **settings)


PROGRESSIVE = encoded(SQUARE, "JPEG", quality=95, progressive=True)
SCANS = PROGRESSIVE.count(b"\xff\xda")
EMPTY_SCAN = b"\xff\xda\0\x08\1\1\0\1\x3f\0"  # of the first component's 63 frequencies


def with_more(segment, count):
    """Return a progressive JPEG with more segments before its end."""
    return PROGRESSIVE.replace(b"\xff\xd9", segment * count + b"\xff\xd9", 1)


GOOD = {
    "a PNG named.jpg": encoded(SQUARE, "PNG"),
    "ink.jpg": encoded(SQUARE.convert("CMYK"), "JPEG"),
    "palette.png": encoded(SQUARE.quantize(), "PNG"),
    **{f"film.{kind}": film(kind.upper()) for kind in ("gif", "avif")},
    "a hundred scans.jpg": with_more(EMPTY_SCAN, 100 - SCANS),
    "scans after the end.jpg": PROGRESSIVE + EMPTY_SCAN * 500,
    "eleven frames.jpg": film("MPO", 11, quality=95, progressive=True),
}

ANY = "..."  # a decoder's own words, which differ from version to version
NONE_OF = "none of JPEG, PNG, GIF, WEBP, BMP, TIFF, PPM, AVIF, JPEG2000..."
REPLACE = "not a readable image ({}): replace the file"
TOO_LARGE = REPLACE.format("Image size (178970884 pixels) exceeds limit of 178956970 pixels...")
TOO_MANY = "not a readable image (more than 100 scans or 10000 segments): save it again"
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
BAD = {
    "none.jpg": (None, "no such image: check its path, and image_root or --root"),
    ".": (None, REPLACE.format("Is a directory")),
    "text.jpg": (b"just text", REPLACE.format(NONE_OF)),
    "drawing.jpg": (POSTSCRIPT, REPLACE.format(NONE_OF)),  # Pillow has Ghostscript run it
    "half.jpg": (encoded(NOISE, "JPEG")[:-1500], REPLACE.format(ANY)),
    "header alone.png": (encoded(SQUARE, "PNG")[:50], REPLACE.format(ANY)),
    "too large.png": (encoded(Image.new("1", (13_378, 13_378)), "PNG"), TOO_LARGE),
    "101 scans.jpg": (with_more(EMPTY_SCAN, 101 - SCANS), TOO_MANY),
    "segments.jpg": (with_more(b"\xff\xfe\0\2", 10_000), TOO_MANY),
}


@pytest.mark.parametrize("name", GOOD)
def test_an_image_is_read_by_its_content_whatever_its_name(tmp_path, name):
    (tmp_path / name).write_bytes(GOOD[name])
    image = load_image(tmp_path / name)
    assert (image.mode, image.size) == ("RGB", (8, 8))
    assert np.abs(np.asarray(image).astype(int) - RED).max() <= 3


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_one_line_and_is_not_decoded_where_it_is_too_large(
    tmp_path, name, monkeypatch
):
    content, expected = BAD[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    if expected in (TOO_LARGE, TOO_MANY):
        monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _: pytest.fail("decoded"))
    begin, _, end = expected.partition(ANY)
    with raises_line(UserError, start=f"{tmp_path / name}: {begin}") as error:
        load_image(tmp_path / name)
    message = str(error.value).removeprefix(f"{tmp_path / name}: ")
    assert len(message) < 200 and message.endswith(end) and (end or message == expected)


def test_no_permission_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with raises_line(UserError, "not a readable image (Permission denied): check its permissions"):
        load_image(tmp_path)
