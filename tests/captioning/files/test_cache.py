"""The cache's names, and copies of stored files: complete, made once, renewed when they change."""

import pytest

from captioning.files import stores
from captioning.files.cache import cache_folder, local
from captioning.files.stores import Missing
from captioning.runtime.errors import UserError
from tests.captioning.object_store import FAULTS
from tests.programs import raises_line

DATA = bytes(range(256)) * 200
ADDRESS = "s3://bucket/within/a.bin"


@pytest.fixture
def store(s3):
    """Return the server, on which ADDRESS is DATA."""
    s3.files.pipe_file(ADDRESS, DATA)
    s3.requests.clear()
    return s3


@pytest.mark.parametrize("faults", [[], list(FAULTS)])
def test_a_file_is_fetched_whole_once_and_again_when_it_has_changed(store, faults):
    store.faults += faults
    path = local(ADDRESS)
    assert store.faults == [] and path.name == "a.bin" and path.read_bytes() == DATA
    store.requests.clear()
    assert local(ADDRESS) == path and store.requests["GET"] == 0
    store.files.pipe_file(ADDRESS, DATA[::-1])
    assert local(ADDRESS).read_bytes() == DATA[::-1] and not path.exists()


def test_a_fetch_that_broke_off_leaves_no_copy_and_is_begun_again(store, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr("captioning.files.cache.fetch", lambda *_: 1 / 0)
        local(ADDRESS)
    assert local(ADDRESS).read_bytes() == DATA


def test_a_folder_is_no_file_and_a_name_that_leads_out_of_a_folder_is_refused(store):
    with pytest.raises(Missing):
        local("s3://bucket/within")
    store.files.pipe_file("bucket/within/../../x", b"x")
    with raises_line(UserError, "../../x: its name contains .., which is impossible on a disk"):
        local("s3://bucket/within/../../x")


def test_paths_on_a_disk_are_returned_as_they_are():
    assert local("a/b") == local(local("a/b")) and str(local("a/b")) == "a/b"
    assert stores.join("s3://bucket/within/", "a.bin") == stores.join("/in", ADDRESS) == ADDRESS
    assert stores.join("s3://bucket/a", "/in/b") == stores.join("/in", "b") == "/in/b"
    with raises_line(UserError, start=".: cannot be read: Is a directory"):
        stores.read_bytes(".")


def test_the_cache_folder_is_in_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for xdg, parent in (str(tmp_path / "xdg"), "xdg"), ("", ".cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert cache_folder() == tmp_path / parent / "smile"
