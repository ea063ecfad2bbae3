"""Servers of files, asked by http in https's place."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("aiohttp", reason="aiohttp reads https://")

from fsspec.implementations.http import HTTPFileSystem

from captioning.files import store_requests, stores
from captioning.runtime.errors import UserError

DATA = bytes(range(256)) * 40


@pytest.fixture
def server(monkeypatch):
    """Return a server of DATA. answers: by path, headers, or None."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.requests.append(self.path)
            headers = server.answers.get(self.path, {})
            if headers is None:
                self.send_error(404)
                return
            self.send_response(200)
            for name, value in {"Content-Length": len(DATA), **headers}.items():
                if value is not None:
                    self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(DATA if self.command == "GET" else b"")

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answers, server.requests = {}, []
    server.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setitem(store_requests.LIBRARIES, "http", "aiohttp")
    monkeypatch.setattr(store_requests, "PAUSE_S", 0.01)
    HTTPFileSystem.clear_instance_cache()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
    HTTPFileSystem.clear_instance_cache()


def test_a_file_that_is_not_there_is_no_dead_server(server):
    server.answers["/2.jpg"] = None
    with pytest.raises(stores.Missing, match=r"2\.jpg: no such file"):
        stores.read_bytes(f"{server.url}/2.jpg")
    server.shutdown()
    server.server_close()
    with pytest.raises(stores.StoreError, match=r"6 requests failed \(ClientConnectorError"):
        stores.stamp(f"{server.url}/1.jpg")


def test_another_file_of_a_date_has_another_stamp(server):
    stamps = []
    for date in ("Mon, 01 Jan 2024 00:00:00 GMT", "Tue, 02 Jan 2024 00:00:00 GMT"):
        server.answers["/a.tar"] = {"Last-Modified": date, "Accept-Ranges": "bytes"}
        stamps.append(stores.stamp(f"{server.url}/a.tar"))
    assert stamps[0] != stamps[1] and stamps[0][0] == stamps[1][0] == len(DATA)


def test_a_proxy_of_the_environment_is_asked(server, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url)
    assert stores.read_bytes("http://first.invalid/a.jpg") == DATA
    assert server.requests == ["http://first.invalid/a.jpg"]


def test_a_silent_server_is_given_up(server, monkeypatch):
    monkeypatch.setattr(store_requests, "SILENCE_S", 0.2)
    monkeypatch.setattr(store_requests, "TRIES", 2)
    server.answers["/a.jpg"] = {"Content-Length": 2 * len(DATA)}
    with pytest.raises(stores.StoreError, match=r"a\.jpg: 2 requests failed \("):
        stores.read_bytes(f"{server.url}/a.jpg")


def test_a_file_of_unknown_size_cannot_be_opened(server):
    server.answers["/a.tar"] = {"Content-Length": None}
    assert stores.read_bytes(f"{server.url}/a.tar") == DATA
    with pytest.raises(UserError, match=r"a\.tar: its server reports neither its size nor range"):
        stores.open_file(f"{server.url}/a.tar")
