"""Servers that send too much, lead elsewhere, or say nothing, asked by http in https's place."""

import asyncio
import contextlib
import gzip
import threading
import time
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

pytest.importorskip("aiohttp", reason="aiohttp reads https://")

import aiohttp
import fsspec
from fsspec.implementations.http import HTTPFileSystem

from captioning.files import store_requests, stores, web
from captioning.runtime.errors import UserError
from tests.programs import raises_line

DATA = bytes(range(256)) * 40
SILENT = 5.0  # seconds in which a test does not get an answer
FAILED, UNASKED = "2 requests failed", "its server does not answer"


@pytest.fixture
def server(monkeypatch):
    """Return a server of DATA. answers: by path, headers and body, seconds of silence, or None."""
    request = aiohttp.ClientSession._request

    async def impatient(session, method, url, **settings):
        """Wait less for an answer that does not come; for others as long as a machine is busy."""
        if server.answers.get(urlsplit(str(url)).path) is SILENT:
            settings["timeout"] = aiohttp.ClientTimeout(sock_read=0.05)
        return await request(session, method, url, **settings)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.requests.append(self.path)
            answer = server.answers.get(self.path, ({}, DATA))
            if isinstance(answer, float):
                time.sleep(answer)
                return
            if answer is None:
                self.send_error(404)
                return
            headers, body = answer
            self.send_response(302 if {"Location", "URI"} & headers.keys() else 200)
            for name, value in {"Content-Length": len(body), **headers}.items():
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
    web._of_server.cache_clear()
    monkeypatch.setattr(aiohttp.ClientSession, "_request", impatient)
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


def read(server, number, line=None):
    """Read a file; line: what is said of it if it cannot be read."""
    if line is None:
        assert stores.read_bytes(f"{server.url}/{number}.jpg") == DATA
    else:
        refused(f"{server.url}/{number}.jpg", line)


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


def test_a_bucket_gets_all_tries_for_each_file(monkeypatch):
    monkeypatch.setattr(store_requests, "PAUSE_S", 0)

    def time_out():
        raise asyncio.TimeoutError

    for name in "abc":
        with pytest.raises(stores.StoreError, match="6 requests failed"):
            store_requests.retry(f"gs://bucket/{name}", time_out)


def test_a_proxy_looks_up_where_it_is_led(server, monkeypatch):
    """The server is the proxy, which is asked by the whole address."""
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "10.0.0.2")
    monkeypatch.setitem(fsspec.config.conf, "http", {"client_kwargs": {"trust_env": True}})
    first = "http://first.invalid/a.jpg"
    for to in ("http://second.invalid/b.jpg", "http://10.0.0.1/b.jpg"):
        server.answers[first] = {"Location": to}, b""
        assert stores.read_bytes(first) == DATA
        assert server.requests[-2:] == [first, to]
    server.answers[first] = {"Location": "http://10.0.0.2/b.jpg"}, b""
    refused(first, "redirects to 10.0.0.2, which is in a private")


@pytest.mark.slow
def test_a_server_that_says_nothing_does_not_cost_each_image_its_patience(server):
    server.answers.update({f"/{number}.jpg": SILENT for number in range(6)})
    breaker = web.circuit_breaker_of(server.url)
    for number, line in enumerate([FAILED, FAILED, UNASKED, UNASKED]):
        read(server, number, line)
    assert len(server.requests) == 4
    breaker.paused_until = 0.0  # a minute later
    read(server, 2, "1 requests failed")
    read(server, 7, UNASKED)
    breaker.paused_until = 0.0
    read(server, 7)
    read(server, 3, FAILED)
    read(server, 8)


@pytest.mark.slow
def test_parts_that_are_read_together_count_as_one_file(server):
    server.answers.update({f"/{number}.jpg": SILENT for number in range(5)})
    parts = [stores.ByteRange(f"{server.url}/{number}.jpg", 0, 4) for number in range(5)]
    for requests, line in [(7, FAILED), (14, FAILED), (14, UNASKED)]:
        assert all(line in str(error) for error in stores.read_ranges(parts))
        assert len(server.requests) == requests
    web.circuit_breaker_of(server.url).paused_until = 0.0  # a minute later
    for number in range(5):
        server.answers[f"/{number}.jpg"] = {"Content-Length": 4}, DATA[:4]
    assert stores.read_ranges(parts) == [DATA[:4]] * 5


@pytest.mark.slow
def test_an_outage_of_a_server_that_has_answered_is_waited_for(server, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    clock.monotonic, clock.sleep = lambda: clock.now, lambda s: setattr(clock, "now", clock.now + s)
    monkeypatch.setattr(web, "time", clock)
    monkeypatch.setattr(web, "MAX_SILENT_FILES", 4)
    tries = {1: 2, 2: 2, 3: 1, 5: 2, 6: 2, 7: 1, 8: 1}
    server.answers.update({f"/{number}.jpg": SILENT for number in tries})
    minutes = []
    for number in range(9):
        read(server, number, f"{tries[number]} requests failed" if number in tries else None)
        minutes.append(clock.now / 60)
    assert minutes == [0, 0, 0, 1, 2, 2, 2, 3, 4]
    read(server, 9, UNASKED)


@pytest.mark.slow
def test_a_file_that_is_not_there_is_an_answer(server):
    server.answers.update({"/1.jpg": SILENT, "/2.jpg": None, "/3.jpg": SILENT})
    for number, line in enumerate([FAILED, "no such file", FAILED, None], 1):
        read(server, number, line)


def test_a_server_that_is_not_there_is_no_missing_file(server):
    server.shutdown()
    server.server_close()
    with pytest.raises(stores.StoreError, match=r"6 requests failed \(ClientConnectorError"):
        stores.stamp(f"{server.url}/1.jpg")
    read(server, 1, "6 requests failed")
    read(server, 2, UNASKED)


def test_another_file_of_a_date_has_another_stamp(server):
    stamps = []
    for date in ("Mon, 01 Jan 2024 00:00:00 GMT", "Tue, 02 Jan 2024 00:00:00 GMT"):
        server.answers["/a.tar"] = {"Last-Modified": date, "Accept-Ranges": "bytes"}, DATA
        stamps.append(stores.stamp(f"{server.url}/a.tar"))
    assert stamps[0] != stamps[1] and stamps[0][0] == stamps[1][0] == len(DATA)
