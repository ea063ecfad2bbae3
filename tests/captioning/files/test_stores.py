"""Files in object stores and at https servers, and copies of them in the cache, whatever fails."""

from unittest.mock import Mock

import pytest

from captioning.files import store_requests, stores
from captioning.files.cache import cache_folder, local
from captioning.runtime.errors import UserError
from tests.captioning.object_store import FAULTS
from tests.programs import raises_line
from tests.servers import serving


def test_a_library_that_is_missing_is_named(monkeypatch):
    missing = Mock(side_effect=ImportError("Install gcsfs to access Google Storage"))
    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(UserError, match="gs://b/a: needs the gcsfs library: pip install gcsfs"):
        stores.stamp("gs://b/a")


FILES = {  # {path: headers}; each has 100 bytes
    "/of_monday": {"Content-Length": 100, "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"},
    "/of_tuesday": {"Content-Length": 100, "Last-Modified": "Tue, 02 Jan 2024 00:00:00 GMT"},
    "/of_unknown_size": {"Content-Length": None, "Connection": "close"},
    "/silent": {"Content-Length": 200},
}


def test_files_of_an_https_server_are_read_or_one_line(monkeypatch):
    """The server speaks http, which takes the place of https."""
    pytest.importorskip("aiohttp", reason="aiohttp reads https://")
    for name, value in {"PAUSE_S": 0.01, "SILENCE_S": 0.2, "TRIES": 2}.items():
        monkeypatch.setattr(store_requests, name, value)
    monkeypatch.setitem(store_requests.LIBRARIES, "http", "aiohttp")

    def answer(path, headers, body):
        return (200, FILES[path], bytes(100)) if path in FILES else (404, {}, b"")

    with serving(answer) as server:
        url = server.url
        assert stores.read_bytes(f"{url}/of_unknown_size") == bytes(100)
        monday, tuesday = (stores.stamp(f"{url}/of_{day}") for day in ("monday", "tuesday"))
        assert monday != tuesday and monday[0] == tuesday[0] == 100
        with raises_line(UserError, "size: its server reports neither its size nor range support"):
            stores.open_file(f"{url}/of_unknown_size")
        with raises_line(stores.Missing, "none.jpg: no such file or bucket"):
            stores.read_bytes(f"{url}/none.jpg")
        with raises_line(stores.StoreError, "silent: 2 requests failed ("):
            stores.read_bytes(f"{url}/silent")
    with raises_line(stores.StoreError, "of_monday: 2 requests failed ("):
        stores.stamp(f"{url}/of_monday")


DATA = bytes(range(256)) * 200
ADDRESS = "s3://bucket/within/a.bin"


def test_a_file_is_fetched_whole_once_and_again_when_it_has_changed(s3, monkeypatch):
    s3.files.pipe_file(ADDRESS, DATA)
    s3.faults += FAULTS
    path = local(ADDRESS)
    assert s3.faults == [] and path.name == "a.bin" and path.read_bytes() == DATA
    s3.requests.clear()
    assert local(ADDRESS) == path and s3.requests["GET"] == 0
    s3.files.pipe_file(ADDRESS, DATA[::-1])
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr("captioning.files.cache.fetch", lambda *_: 1 / 0)  # it breaks off
        local(ADDRESS)
    assert local(ADDRESS).read_bytes() == DATA[::-1] and not path.exists()


def test_a_folder_is_no_file_and_a_name_that_leads_out_of_a_folder_is_refused(s3):
    s3.files.pipe_file(ADDRESS, DATA)
    with pytest.raises(stores.Missing):
        local("s3://bucket/within")
    s3.files.pipe_file("bucket/within/../../x", b"x")
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
