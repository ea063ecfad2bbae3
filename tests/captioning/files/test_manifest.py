"""A large file is what its manifest says, or refused."""

import hashlib
import json

import pytest
import torch

from captioning.files.manifest import HashedFile, manifest_path, verify, write_manifest
from captioning.runtime.errors import UserError


@pytest.fixture
def path(tmp_path):
    """Return the path of a file with a manifest."""
    path = tmp_path / "weights.pth"
    with open(path, "wb") as file:
        hashed = HashedFile(file)
        torch.save({"w": torch.arange(5000.0), "v": torch.ones(3)}, hashed)
        write_manifest(hashed, path)
    return path


def test_a_manifest_is_of_the_bytes_on_disk(path):
    content = path.read_bytes()
    assert json.loads(manifest_path(path).read_text()) == {
        "file": "weights.pth",
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    verify(path)


@pytest.mark.parametrize("place", [0, -1])
def test_one_changed_bit_and_a_cut_are_found(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"weights.pth cannot be read: its content differs"):
        verify(path)
    path.write_bytes(content[:9000])
    with pytest.raises(UserError, match=f"cannot be read: it has 9000 of {len(content)} bytes"):
        verify(path)


@pytest.mark.parametrize("written", ["{", "[]", '{"files": {"a": 3}}'])
def test_a_file_whose_manifest_cannot_be_read_is_refused(path, written):
    manifest_path(path).write_text(written)
    with pytest.raises(UserError, match=r"weights.json cannot be read"):
        verify(path)


def test_a_file_without_a_manifest_is_taken_as_it_is(path):
    manifest_path(path).unlink()
    path.write_bytes(b"whatever")
    verify(path)
