"""Archives of arrays are checked before they are unpacked."""

import io
import zipfile

import numpy as np
import pytest

from captioning.metrics import clip_features
from captioning.metrics.clip_features import NO_ARRAYS, read_arrays


def header(shape):
    file = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header((10**12, 512)), "Unable to allocate"),
        (header((-1, 512)), "negative|dimension"),
        (header((5,)), "EOF|cannot reshape|Failed to read"),
        (b"just text", "a is not an array"),
        (header((250_000,)) + bytes(1_000_000), r"^a.npy has more than 999999 bytes unpacked$"),
    ],
)
def test_members_that_are_no_arrays(tmp_path, monkeypatch, content, message):
    with zipfile.ZipFile(tmp_path / "f.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", content)
    monkeypatch.setattr(clip_features, "LARGEST", 999_999)
    with pytest.raises(NO_ARRAYS, match=message):
        read_arrays(tmp_path / "f.npz", "a")
    np.savez(tmp_path / "f.npz", a=[1.0])
    with pytest.raises(KeyError, match="b"):
        read_arrays(tmp_path / "f.npz", "a", "b")
