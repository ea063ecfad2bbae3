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

from captioning.files import stores, web
from captioning.runtime.errors import UserError

DATA = bytes(range(256)) * 40


SILENT = 5.0  # seconds in which a test does not get an answer


@pytest.fixture
def server(monkeypatch):
    """Return a server: of DATA, and of what `answers` has by path: headers and body, seconds
    of silence, or None for a file that is not there.

    requests: the paths that it was asked for.
    """

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
    monkeypatch.setitem(stores.LIBRARIES, "http", "aiohttp")
    monkeypatch.setattr(stores, "PAUSE_S", 0.01)
    monkeypatch.setattr(web, "_patience", type(web._patience)(web.Patience))
    monkeypatch.setattr(aiohttp.ClientSession, "_request", impatient)
    HTTPFileSystem.clear_instance_cache()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
    HTTPFileSystem.clear_instance_cache()


def test_a_body_of_more_bytes_than_it_may_have_is_not_read(server, monkeypatch):
    monkeypatch.setattr(web, "MAX_UNPACKED_BYTES", 1 << 20)
    packed = {"Content-Encoding": "gzip"}
    server.answers["/a.jpg"] = packed, gzip.compress(bytes(1 << 27), 1)
    server.answers["/b.jpg"] = packed, gzip.compress(DATA)
    assert stores.read_bytes(f"{server.url}/b.jpg") == DATA
    tracemalloc.start()
    with pytest.raises(UserError, match=r"a\.jpg: its server sends more than 1,048,576 bytes"):
        stores.read_bytes(f"{server.url}/a.jpg")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 26 and server.requests == ["/b.jpg", "/a.jpg"]
    server.answers["/c.jpg"] = {}, bytes(1 << 24)
    with pytest.raises(UserError, match=r"c\.jpg: its server sends more than 100 bytes"):
        stores.read_range(f"{server.url}/c.jpg", 0, 100)
    assert server.requests[2:] == ["/c.jpg"]


def test_nobody_is_led_into_a_private_network(server, monkeypatch):
    """Of the two names of this machine one is taken for a public host's."""

    monkeypatch.setattr(web, "are_private", lambda url, proxies: ["localhost" not in url])
    public = server.url.replace("127.0.0.1", "localhost")
    for to in (server.url, public):
        server.answers[f"/to/{to}"] = {"Location": f"{to}/a.jpg"}, b""
    with pytest.raises(UserError, match=r"server redirects to 127\.0\.0\.1, which is in a private"):
        stores.read_bytes(f"{public}/to/{server.url}")
    with pytest.raises(UserError, match=r"redirects to 127\.0\.0\.1"):
        stores.stamp(f"{public}/to/{server.url}")
    for headers in ({"URI": f"{server.url}/a.jpg"}, {"Location": "", "URI": f"{server.url}/a.jpg"}):
        server.answers["/b.jpg"] = headers, b""
        with pytest.raises(UserError, match=r"redirects to 127\.0\.0\.1"):
            stores.read_bytes(f"{public}/b.jpg")
    assert "/a.jpg" not in server.requests
    for begin, to in [(public, public), (server.url, server.url), (server.url, public)]:
        assert stores.read_bytes(f"{begin}/to/{to}") == DATA


def test_a_refusal_is_told_by_its_type_and_not_by_its_name(monkeypatch):
    monkeypatch.setattr(stores, "TRIES", 1)

    def ask():
        raise type("Refused", (Exception,), {})("S3CR3T")

    for address in ("s3://bucket/a.jpg", "https://host/a.jpg"):
        with pytest.raises(stores.StoreError, match=r"1 requests failed \(Refused\)"):
            stores.retry(address, ask)


def test_a_bucket_gets_all_tries_for_each_file(monkeypatch):
    monkeypatch.setattr(stores, "PAUSE_S", 0)

    def time_out():
        raise asyncio.TimeoutError

    for name in "abc":
        with pytest.raises(stores.StoreError, match="6 requests failed"):
            stores.retry(f"gs://bucket/{name}", time_out)


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
    with pytest.raises(UserError, match=r"redirects to 10\.0\.0\.2, which is in a private"):
        stores.read_bytes(first)


def test_a_server_that_says_nothing_does_not_cost_each_image_its_patience(server):
    names = [f"{server.url}/{number}.jpg" for number in range(9)]
    server.answers.update({f"/{number}.jpg": SILENT for number in range(6)})
    for name in names[:2]:
        with pytest.raises(stores.StoreError, match="2 requests failed"):
            stores.read_bytes(name)
    assert len(server.requests) == 4
    for name in names[2:]:
        with pytest.raises(stores.StoreError, match="its server does not answer"):
            stores.read_bytes(name)
    assert len(server.requests) == 4
    web.patience_with(names[0]).paused_until = 0.0  # a minute later
    with pytest.raises(stores.StoreError, match="1 requests failed"):
        stores.read_bytes(names[2])
    with pytest.raises(stores.StoreError, match="its server does not answer"):
        stores.read_bytes(names[7])
    web.patience_with(names[0]).paused_until = 0.0  # a minute later
    assert stores.read_bytes(names[7]) == DATA
    with pytest.raises(stores.StoreError, match="2 requests failed"):
        stores.read_bytes(names[3])
    assert stores.read_bytes(names[8]) == DATA


def test_parts_that_are_read_together_count_as_one_file(server):
    server.answers.update({f"/{number}.jpg": SILENT for number in range(5)})
    parts = [(f"{server.url}/{number}.jpg", 0, 4) for number in range(5)]
    for requests, told in [(7, "2 requests"), (14, "2 requests"), (14, "does not answer")]:
        found = stores.read_ranges(parts)
        assert all(type(error) is stores.StoreError and told in str(error) for error in found)
        assert len(server.requests) == requests
    web.patience_with(parts[0][0]).paused_until = 0.0  # a minute later
    for number in range(5):
        server.answers[f"/{number}.jpg"] = {"Content-Length": 4}, DATA[:4]
    assert stores.read_ranges(parts) == [DATA[:4]] * 5
    server.answers["/0.jpg"] = SILENT
    # The server has answered: a file times out twice again.
    error, *others = stores.read_ranges(parts)
    assert "2 requests failed" in str(error) and others == [DATA[:4]] * 4


@pytest.mark.parametrize("by_user", [False, True])
def test_how_long_a_server_may_take_is_its_users_to_say(server, monkeypatch, by_user):
    settings = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_read=0.2)}}
    monkeypatch.setattr(web, "SILENCE_S", 60 if by_user else 0.2)
    monkeypatch.setitem(fsspec.config.conf, "http", settings if by_user else {})
    server.answers["/a.jpg"] = 1.0
    with pytest.raises(stores.StoreError, match="2 requests failed"):
        stores.read_bytes(f"{server.url}/a.jpg")


def test_an_outage_of_a_server_that_has_answered_is_waited_for(server, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    clock.monotonic, clock.sleep = lambda: clock.now, lambda s: setattr(clock, "now", clock.now + s)
    monkeypatch.setattr(web, "time", clock)
    monkeypatch.setattr(web, "OUTAGE", 4)
    names = [f"{server.url}/{number}.jpg" for number in range(10)]
    tries = {1: 2, 2: 2, 3: 1, 5: 2, 6: 2, 7: 1, 8: 1}
    server.answers.update({f"/{number}.jpg": SILENT for number in tries})
    minutes = []
    for number, name in enumerate(names[:9]):
        if number in tries:
            with pytest.raises(stores.StoreError, match=f"{tries[number]} requests failed"):
                stores.read_bytes(name)
        else:
            assert stores.read_bytes(name) == DATA
        minutes.append(clock.now / 60)
    assert minutes == [0, 0, 0, 1, 2, 2, 2, 3, 4]
    with pytest.raises(stores.StoreError, match="its server does not answer"):  # nor will it
        stores.read_bytes(names[9])


def test_a_file_that_is_not_there_is_an_answer(server):
    server.answers.update({"/a.jpg": SILENT, "/b.jpg": None, "/c.jpg": SILENT})
    failed = "2 requests failed"
    for name, line in [("a", failed), ("b", "no such file"), ("c", failed)]:
        with pytest.raises(UserError, match=line):
            stores.read_bytes(f"{server.url}/{name}.jpg")
    assert stores.read_bytes(f"{server.url}/d.jpg") == DATA


def test_a_server_that_is_not_there_is_no_missing_file(server, monkeypatch):
    server.shutdown()
    server.server_close()
    for ask in (stores.stamp, stores.read_bytes):
        with pytest.raises(stores.StoreError, match=r"6 requests failed \(ClientConnectorError"):
            ask(f"{server.url}/a.jpg")
    with pytest.raises(stores.StoreError, match="its server does not answer"):
        stores.read_bytes(f"{server.url}/b.jpg")


def test_another_file_of_a_date_has_another_stamp(server):
    stamps = []
    for date in ("Mon, 01 Jan 2024 00:00:00 GMT", "Tue, 02 Jan 2024 00:00:00 GMT"):
        server.answers["/a.tar"] = {"Last-Modified": date, "Accept-Ranges": "bytes"}, DATA
        stamps.append(stores.stamp(f"{server.url}/a.tar"))
    assert stamps[0] != stamps[1] and stamps[0][0] == stamps[1][0] == len(DATA)
