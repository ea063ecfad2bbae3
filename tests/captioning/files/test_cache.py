"""The names of what a cache keeps are those of earlier versions, which have to find it again."""

import hashlib

import pytest

from captioning.files.cache import cache_folder, cache_key


def test_a_key_is_the_beginning_of_the_sha256_of_the_text():
    # FIPS 180-2, appendix B.1
    whole = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert cache_key("abc") == whole
    assert cache_key("abc", 16) == whole[:16]


def test_a_path_that_is_no_utf_8_has_the_key_of_its_bytes():
    raw = b"/photos/caf\xe9.tar"
    path = raw.decode(errors="surrogateescape")
    assert cache_key(path) == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize("xdg", [True, False])
def test_the_folder_is_that_of_the_user(tmp_path, monkeypatch, xdg):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg") if xdg else "")
    assert cache_folder() == tmp_path / ("xdg" if xdg else ".cache") / "smile"
    assert cache_folder(tmp_path) == tmp_path
