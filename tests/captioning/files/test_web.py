"""Servers that send too much or lead elsewhere, asked by http in https's place."""

import contextlib
import gzip
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("aiohttp", reason="aiohttp reads https://")

from fsspec.implementations.http import HTTPFileSystem

from captioning.files import store_requests, stores, web
from captioning.runtime.errors import UserError
from tests.programs import raises_line

DATA = bytes(range(256)) * 40


@pytest.fixture
def server(monkeypatch):
    """Return a server of DATA. answers: by path, headers and body, or None."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.requests.append(self.path)
            answer = server.answers.get(self.path, ({}, DATA))
            if answer is None:
                self.send_error(404)
                return
            headers, body = answer
            self.send_response(302 if {"Location", "URI"} & headers.keys() else 200)
            for name, value in {"Content-Length": len(body), **headers}.items():
                if value is not None:
                    self.send_header(name, str(value))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body if self.command == "GET" else b"")

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


def refused(address, line, ask=stores.read_bytes):
    """What is asked for is refused in one line."""
    with raises_line(UserError, line):
        ask(address)


def test_a_body_of_more_bytes_than_it_may_have_is_not_read(server, monkeypatch):
    monkeypatch.setattr(web, "MAX_UNPACKED_BYTES", 1 << 20)
    packed = {"Content-Encoding": "gzip"}
    server.answers["/a.jpg"] = packed, gzip.compress(bytes(1 << 27), 1)
    server.answers["/b.jpg"] = packed, gzip.compress(DATA)
    assert stores.read_bytes(f"{server.url}/b.jpg") == DATA
    tracemalloc.start()
    refused(f"{server.url}/a.jpg", "a.jpg: its server sends more than 1,048,576 bytes")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 26 and server.requests == ["/b.jpg", "/a.jpg"]
    server.answers["/c.jpg"] = {}, bytes(1 << 24)
    with raises_line(UserError, "c.jpg: its server sends more than 100 bytes"):
        stores.read_range(f"{server.url}/c.jpg", 0, 100)
    assert server.requests[2:] == ["/c.jpg"]


def test_nobody_is_led_into_a_private_network(server, monkeypatch):
    """Of the two names of this machine one is taken for a public host's."""
    monkeypatch.setattr(web, "are_private", lambda url, proxies: ["localhost" not in url])
    public = server.url.replace("127.0.0.1", "localhost")
    for to in (server.url, public):
        server.answers[f"/to/{to}"] = {"Location": f"{to}/a.jpg"}, b""
    line = "server redirects to 127.0.0.1, which is in a private"
    for ask in (stores.read_bytes, stores.stamp):
        refused(f"{public}/to/{server.url}", line, ask)
    for headers in ({"URI": f"{server.url}/a.jpg"}, {"Location": "", "URI": f"{server.url}/a.jpg"}):
        server.answers["/b.jpg"] = headers, b""
        refused(f"{public}/b.jpg", line)
    assert "/a.jpg" not in server.requests
    for begin, to in [(public, public), (server.url, server.url), (server.url, public)]:
        assert stores.read_bytes(f"{begin}/to/{to}") == DATA


def test_a_proxy_looks_up_where_it_is_led(server, monkeypatch):
    """The server is the proxy, which is asked by the whole address."""
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "10.0.0.2")
    first = "http://first.invalid/a.jpg"
    for to in ("http://second.invalid/b.jpg", "http://10.0.0.1/b.jpg"):
        server.answers[first] = {"Location": to}, b""
        assert stores.read_bytes(first) == DATA
        assert server.requests[-2:] == [first, to]
    server.answers[first] = {"Location": "http://10.0.0.2/b.jpg"}, b""
    refused(first, "redirects to 10.0.0.2, which is in a private")


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
        server.answers["/a.tar"] = {"Last-Modified": date, "Accept-Ranges": "bytes"}, DATA
        stamps.append(stores.stamp(f"{server.url}/a.tar"))
    assert stamps[0] != stamps[1] and stamps[0][0] == stamps[1][0] == len(DATA)


def test_a_silent_server_is_given_up(server, monkeypatch):
    monkeypatch.setattr(web, "SILENCE_S", 0.2)
    monkeypatch.setattr(store_requests, "TRIES", 2)
    server.answers["/a.jpg"] = {"Content-Length": 2 * len(DATA)}, DATA
    with pytest.raises(stores.StoreError, match=r"a\.jpg: 2 requests failed \("):
        stores.read_bytes(f"{server.url}/a.jpg")


def test_a_file_of_unknown_size_cannot_be_opened(server):
    server.answers["/a.tar"] = {"Content-Length": None}, DATA
    assert stores.read_bytes(f"{server.url}/a.tar") == DATA
    with pytest.raises(UserError, match=r"a\.tar: its server reports neither its size nor range"):
        stores.open_file(f"{server.url}/a.tar")
