"""Images of every kind: read for what they are, or refused in one line that names the file."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from captioning.data import load_image, training_transform
from captioning.data.image import MAX_PIXELS, evaluation_transform
from captioning.runtime.errors import UserError

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


# name: content, size, colour of every pixel
GOOD = {
    "a.png": (plain("PNG"), (8, 8), RED),
    "a PNG named.jpg": (plain("PNG"), (8, 8), RED),
    "ink.jpg": (encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"), (8, 8), RED),
    "palette.png": (palette(), (8, 8), RED),
    "one pixel.png": (plain("PNG", (1, 1)), (1, 1), RED),
    "strip.png": (plain("PNG", (1, 3000)), (1, 3000), RED),
    "film.gif": (animated("GIF"), (8, 8), RED),
    "b.bmp": (plain("BMP"), (8, 8), RED),
    "b.tiff": (plain("TIFF"), (8, 8), RED),
    "b.ppm": (plain("PPM"), (8, 8), RED),
    "a hundred scans.jpg": (scanned(100), (8, 8), RED),
    "a thumbnail's scans.jpg": (
        plain("JPEG", quality=95, progressive=True, exif=b"Exif\0\0" + EMPTY_SCAN * 500),
        (8, 8),
        RED,
    ),
    "scans after the end.jpg": (PROGRESSIVE + EMPTY_SCAN * 500, (8, 8), RED),
    "eleven frames.jpg": (frames(11), (8, 8), RED),
}

ANY = "..."  # a decoder's own words, which differ from version to version
NONE_OF = "none of JPEG, PNG, GIF, WEBP, BMP, TIFF, PPM, AVIF, JPEG2000"
REPLACE = "not a readable image ({}): replace the file"
TOO_LARGE = f"not a readable image (more than {MAX_PIXELS} pixels): make it smaller"
TOO_MANY = "not a readable image (more than 100 scans or 10000 segments): save it again"
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
BAD = {
    "text.jpg": (b"just text", REPLACE.format(NONE_OF)),
    "drawing.jpg": (POSTSCRIPT, REPLACE.format(NONE_OF)),  # Pillow has Ghostscript run it
    "beginning.png": (plain("PNG")[:20], REPLACE.format(ANY)),
    "half.jpg": (encoded(Image.fromarray(NOISE), "JPEG")[:-1500], REPLACE.format(ANY)),
    "half.png": (encoded(Image.fromarray(NOISE), "PNG")[:-3000], REPLACE.format(ANY)),
    "half.webp": (encoded(Image.fromarray(NOISE), "WEBP")[:-500], REPLACE.format(ANY)),
    "header alone.png": (png(9000, 9000), REPLACE.format(ANY)),
    "30000 x 30000, header alone.png": (png(30_000, 30_000), TOO_LARGE),
    "30000 x 30000.ppm": (b"P6 30000 30000 255\n", TOO_LARGE),
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
def test_an_image_is_read(tmp_path, name):
    content, size, colour = GOOD[name]
    (tmp_path / name).write_bytes(content)
    image = load_image(tmp_path / name)
    assert (image.mode, image.size) == ("RGB", size)
    assert np.abs(np.asarray(image).astype(int) - colour).max() <= 3
    assert evaluation_transform(16)(image).shape == (3, 16, 16)
    assert training_transform(16)(image).shape == (16, 16, 3)


def assert_said(error, path, expected):
    where, message = str(error)[: len(str(path))], str(error)[len(str(path)) + 2 :]
    begin, _, end = expected.partition(ANY)
    assert where == str(path) and "\n" not in message and len(message) < 200
    assert message == expected if ANY not in expected else message.startswith(begin)
    assert message.endswith(end)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_refused_before_it_is_decoded(tmp_path, name, monkeypatch):
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    if message in (TOO_LARGE, TOO_MANY):
        monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _: pytest.fail("decoded"))
    with pytest.raises(UserError) as error:
        load_image(tmp_path / name)
    assert_said(error.value, tmp_path / name, message)


def test_the_limit_holds_though_a_library_lifts_pillows(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    (tmp_path / "large.png").write_bytes(png(30_000, 30_000))
    with pytest.raises(UserError) as error:
        load_image(tmp_path / "large.png")
    assert_said(error.value, tmp_path / "large.png", TOO_LARGE)


def test_no_file(tmp_path):
    missing = "no such image: check image_root and the image's path in the annotation"
    rows = {"none.jpg": missing, ".": REPLACE.format("Is a directory")}
    for name, message in rows.items():
        with pytest.raises(UserError) as error:
            load_image(tmp_path / name)
        assert_said(error.value, tmp_path / name, message)
