"""Archives of arrays: what is in them is looked at before it is unpacked."""

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


def archive(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def test_arrays_are_read(tmp_path):
    given = {"a": np.arange(5.0), "b": np.array(["x", "é"])}
    np.savez_compressed(tmp_path / "f.npz", **given)
    first, second = read_arrays(tmp_path / "f.npz", "b", "a")
    assert first.tolist() == ["x", "é"] and second.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header((10**12, 512)), "Unable to allocate"),
        (header((-1, 512)), "negative|dimension"),
        (header((5,)), "EOF|cannot reshape|Failed to read"),
        (b"just text", "a is no array"),
        (b"", "a is no array"),
    ],
)
def test_members_that_are_no_arrays(tmp_path, content, message):
    with pytest.raises(NO_ARRAYS, match=message):
        read_arrays(archive(tmp_path / "f.npz", a=content), "a")


def test_what_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    path = archive(tmp_path / "f.npz", a=header((250_000,)) + bytes(1_000_000))
    assert path.stat().st_size < 2000
    assert read_arrays(path, "a")[0].shape == (250_000,)
    monkeypatch.setattr(clip_features, "LARGEST", 999_999)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("unpacked"))
    with pytest.raises(ValueError, match=r"^a.npy unpacks to more than 999999 bytes$"):
        read_arrays(path, "a")


def test_an_array_that_is_not_there(tmp_path):
    with pytest.raises(KeyError, match="b"):
        read_arrays(archive(tmp_path / "f.npz", a=header((0,))), "b")
