"""Images of every kind: read for what they are, or refused in one line that names the file."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from captioning.data import load_image
from captioning.data.image import MAX_PIXELS
from captioning.runtime.errors import UserError
from tests.programs import raises_line

RED, BLUE = (255, 0, 0), (0, 0, 255)


def encoded(image, kind, **settings):
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def plain(kind, size=(8, 8), colour=RED, **settings):
    return encoded(Image.new("RGB", size, colour), kind, **settings)


def animated(kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE)]
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


def palette():
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, *RED])
    return encoded(image, "PNG")


def png(width, height, data=b""):
    """A PNG of one bit a pixel; its header says how large it is, whatever follows."""

    def chunk(kind, content):
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


PROGRESSIVE = plain("JPEG", quality=95, progressive=True)
EMPTY_SCAN = b"\xff\xda\0\x08\1\1\0\1\x3f\0"  # of the first component's 63 frequencies


def scanned(count):
    """A progressive JPEG of so many scans, which decodes as one of ten does."""
    more = count - PROGRESSIVE.count(b"\xff\xda")
    return PROGRESSIVE[:-2] + EMPTY_SCAN * more + PROGRESSIVE[-2:]


def sequential_scans(count):
    """A JPEG that is not progressive, of so many scans of one or all of its three components."""
    content = plain("JPEG")
    scans = content.index(b"\xff\xda")
    one = b"\xff\xda\0\x08\1\1\0\0\x3f\0"
    return content[:scans] + one + content[scans:-2] * (count - 1) + content[-2:]


def frames(count):
    more = [Image.new("RGB", (8, 8), BLUE)] * (count - 1)
    content = plain("MPO", save_all=True, append_images=more, progressive=True, quality=95)
    assert content.count(b"\xff\xda") == 10 * count
    return content


GOOD = {
    "a.png": plain("PNG"),
    "a PNG named.jpg": plain("PNG"),
    "ink.jpg": encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"),
    "palette.png": palette(),
    "film.gif": animated("GIF"),
    "a hundred scans.jpg": scanned(100),
    "a thumbnail's scans.jpg": plain(
        "JPEG", quality=95, progressive=True, exif=b"Exif\0\0" + EMPTY_SCAN * 500
    ),
    "scans after the end.jpg": PROGRESSIVE + EMPTY_SCAN * 500,
    "eleven frames.jpg": frames(11),
}

ANY = "..."  # a decoder's own words, which differ from version to version
NONE_OF = "none of JPEG, PNG, GIF, WEBP, BMP, TIFF, PPM, AVIF, JPEG2000"
REPLACE = "not a readable image ({}): replace the file"
TOO_LARGE = f"not a readable image (more than {MAX_PIXELS} pixels): make it smaller"
TOO_MANY = "not a readable image (more than 100 scans or 10000 segments): save it again"
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
BAD = {
    "none.jpg": (None, "no such image: check image_root and the image's path in the annotation"),
    ".": (None, REPLACE.format("Is a directory")),
    "text.jpg": (b"just text", REPLACE.format(NONE_OF)),
    "drawing.jpg": (POSTSCRIPT, REPLACE.format(NONE_OF)),  # Pillow has Ghostscript run it
    "half.jpg": (encoded(Image.fromarray(NOISE), "JPEG")[:-1500], REPLACE.format(ANY)),
    "header alone.png": (png(9000, 9000), REPLACE.format(ANY)),
    "30000 x 30000, header alone.png": (png(30_000, 30_000), TOO_LARGE),
    "a little too large.png": (png(13_378, 13_378), TOO_LARGE),
    "101 scans.jpg": (scanned(101), TOO_MANY),
    "101 scans of the first of two frames.jpg": (
        frames(2).replace(b"\xff\xd9\xff\xd8", EMPTY_SCAN * 91 + b"\xff\xd9\xff\xd8", 1),
        TOO_MANY,
    ),
    "101 scans, cut off.jpg": (scanned(101)[:-3], TOO_MANY),
    "101 scans, not progressive.jpg": (sequential_scans(101), TOO_MANY),
    "segments.jpg": (PROGRESSIVE[:-2] + b"\xff\xfe\0\2" * 10_000 + PROGRESSIVE[-2:], TOO_MANY),
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
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    if expected in (TOO_LARGE, TOO_MANY):
        monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _: pytest.fail("decoded"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as other libraries do
    with raises_line(UserError) as error:
        load_image(path)
    begin, _, end = expected.partition(ANY)
    message = str(error.value).removeprefix(f"{path}: ")
    assert len(message) < 200
    assert message == expected or (end and message.startswith(begin) and message.endswith(end))
