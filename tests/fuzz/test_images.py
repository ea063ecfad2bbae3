"""Any image file becomes a tensor of the right shape, or one line that names the file.

Ranges: images of 1 to 40 pixels a side, and of 1 by 600, of every mode that a format takes, saved
as PNG, JPEG, GIF, BMP, TIFF, WebP and PPM, whole, cut off, or with up to 4 bytes changed; and any
bytes to 200. Squares of 16 and 32.
"""

import io
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from captioning.data import evaluation_transform, training_transform
from captioning.data.image import load_image, normalise, open_image
from captioning.runtime.errors import UserError
from tests.fuzz.examples import fuzzed

MODES = {
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"],
    "JPEG": ["L", "RGB", "CMYK"],
    "GIF": ["1", "L", "P", "RGB"],
    "BMP": ["1", "L", "P", "RGB"],
    "TIFF": ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "LAB", "I", "I;16", "F"],
    "WEBP": ["RGB", "RGBA"],
    "PPM": ["1", "L", "RGB", "I"],
}
KINDS = [(kind, mode) for kind, modes in MODES.items() for mode in modes]


def picture(mode, width, height, seed):
    """An image of random values over all of what the mode holds."""
    random = np.random.default_rng(seed)
    if mode == "I;16":
        return Image.fromarray(random.integers(0, 65536, (height, width), dtype=np.uint16))
    if mode == "I":
        return Image.fromarray(random.integers(0, 65536, (height, width), dtype=np.int32))
    if mode == "F":
        values = random.standard_normal((height, width)) * 10.0 ** random.integers(-3, 30)
        return Image.fromarray(values.astype(np.float32))
    return (
        Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
        .convert("RGBA" if mode == "LA" else mode)
        .convert(mode)
    )


@st.composite
def files(draw):
    """The bytes of a file, and whether it is whole."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200)), False
    kind, mode = draw(st.sampled_from(KINDS))
    sides = draw(st.tuples(st.integers(1, 40), st.integers(1, 40)) | st.sampled_from([(1, 600)]))
    buffer = io.BytesIO()
    picture(mode, *sides, draw(st.integers(0, 2**31))).save(buffer, kind)
    content = bytearray(buffer.getvalue())
    what = draw(st.sampled_from(["whole", "cut off", "changed"]))
    if what == "cut off":
        del content[draw(st.integers(0, len(content) - 1)) :]
    if what == "changed":
        # The header above all, where a byte means most.
        place = st.integers(0, len(content) - 1) | st.integers(0, min(60, len(content) - 1))
        for at, value in draw(st.dictionaries(place, st.integers(0, 255), max_size=4)).items():
            content[at] = value
    return bytes(content), what == "whole"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("images") / "any.image"


def or_one_line(make, path, whole):
    """What `make` returns, or None after the documented error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, about oddities in a file
            return make()
    except UserError as error:
        line = str(error)
        assert not whole, line
        assert line.startswith(f"{path}: ") and len(line.splitlines()) == 1
        return None


@fuzzed(200)
@given(files(), st.sampled_from([16, 32]), st.sampled_from(["blip", "none"]))
def test_any_file(path, file, size, augmentation):
    content, whole = file
    path.write_bytes(content)

    def pixels():
        with open_image(path) as image:
            return training_transform(size, augmentation)(image)

    image = or_one_line(lambda: load_image(path), path, whole)
    found = or_one_line(pixels, path, whole)
    if image is not None:
        assert image.mode == "RGB"
        tensor = evaluation_transform(size)(image)
        assert tensor.shape == (3, size, size) and tensor.dtype == torch.float32
        assert tensor.isfinite().all() and tensor.abs().max() < 3
    if found is not None:
        assert found.shape == (size, size, 3) and found.dtype == torch.uint8
        assert normalise(found[None]).isfinite().all()
