"""Files in object stores and at https servers whose answers are slow, broken, late or none."""

import pytest

from captioning.files import store_requests, stores
from captioning.runtime.errors import UserError
from tests.programs import raises_line
from tests.servers import serving


def test_an_address_that_nobody_answers_is_named_without_secrets(s3, monkeypatch):
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(store_requests, "TRIES", 2)
    s3fs.S3FileSystem.clear_instance_cache()
    with raises_line(stores.StoreError, "s3://bucket/a.bin: 2 requests failed") as error:
        stores.stamp("s3://bucket/a.bin")
    assert "S3CR3T" not in str(error.value) and error.value.__cause__ is None


def test_a_library_that_is_missing_is_named(monkeypatch):
    import fsspec

    def missing(*_, **__):
        raise ImportError("Install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
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
