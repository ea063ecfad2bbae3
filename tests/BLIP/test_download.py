"""Downloads from a test server and from the hub: complete, interrupted and refused."""

import base64
import contextlib
import hashlib
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from BLIP import download as hub
from BLIP.download import DownloadError, are_private, download, fetch, without_secrets
from captioning.files import stores
from tests.processes import Processes
from tests.programs import raises_line

CONTENT = bytes(range(256)) * 4000
LENGTH = {"Content-Length": "1024000"}
CHUNKED = {"Transfer-Encoding": "chunked"}
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PIECES = b"".join(b"400\r\n" + bytes(1024) + b"\r\n" for _ in range(9))
CERTIFICATE = Path(__file__).with_name("server.pem")


@pytest.fixture
def server(monkeypatch):
    """A TLS server of `content` that collects `requests`. /to/URL redirects to URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.requests.append(dict(self.headers))
            if self.path.startswith("/absent"):
                self.send_error(404)
                return
            if self.path.startswith("/to/"):
                self.send_response(302)
                self.send_header("Location", self.path[len("/to/") :])
                self.end_headers()
                return
            time.sleep(server.delay)
            self.send_response(200)
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the client may close the connection early
                self.wfile.write(server.content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.requests, server.content, server.headers, server.delay = [], CONTENT, LENGTH, 0
    server.url = f"https://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("headers", "content", "options", "message"),
    [
        (LENGTH, CONTENT[:300_000], {}, "ended after 300000 of 1024000 bytes"),
        (CHUNKED, PIECES + b"400\r\nbroken off", {}, "IncompleteRead"),
        ({}, CONTENT, {}, "does not send the file's length"),
        (LENGTH, CONTENT, {"largest": 1000}, "exceeds the limit of 1000 bytes"),
        (CHUNKED, PIECES + b"0\r\n\r\n", {"largest": 1000}, "exceeds the limit of 1000 bytes"),
        (LENGTH, CONTENT, {"sha256": "000"}, f"has sha256 {SHA256}, expected 000"),
    ],
)
def test_a_failed_download_leaves_nothing_and_the_next_one_is_whole(
    server, tmp_path, headers, content, options, message
):
    server.headers, server.content = headers, content
    with pytest.raises(DownloadError, match=message):
        download(f"{server.url}/file.bin", tmp_path / "file.bin", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin.part.lock"]
    server.headers, server.content = CHUNKED, PIECES + b"0\r\n\r\n"
    download(f"{server.url}/file.bin", tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == bytes(9 * 1024)


def test_a_part_that_a_killed_download_left_is_replaced(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(bytes(2_000_000))
    download(f"{server.url}/file.bin", tmp_path / "file.bin", sha256=SHA256)
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


@pytest.fixture
def hub_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    return tmp_path / "hub" / "checkpoints"


def test_a_url_is_fetched_once(server, hub_folder):
    path, again = (fetch(f"{server.url}/model%20a.pth?download=1") for _ in range(2))
    assert path == again and path.parent == hub_folder and path.name.endswith("-model a.pth")
    assert path.read_bytes() == CONTENT and len(server.requests) == 1
    assert fetch(f"{server.url}/elsewhere/model%20a.pth") != path and len(server.requests) == 2


def test_names_do_not_lead_out_of_the_cache(server, hub_folder, tmp_path):
    for name in ("%2e%2e%2f%2e%2e%2fout.pth", "..%2f..%2f..%2fout.pth", "a/%2e%2e", "%2Ftmp%2Fx"):
        assert fetch(f"{server.url}/{name}").parent == hub_folder
    assert {path.name for path in tmp_path.iterdir()} == {"hub"}


def test_a_redirect_from_a_public_host_into_a_private_network_is_refused(
    server, tmp_path, monkeypatch
):
    """Only /inside counts as private here."""
    path = "/inside/file.bin"
    monkeypatch.setattr("BLIP.download.are_private", lambda url: [urlsplit(url).path == path])
    line = r"redirects to 127\.0\.0\.1, which is in a private network"
    with pytest.raises(DownloadError, match=line):
        download(f"{server.url}/to/{server.url}{path}", tmp_path / "file.bin")
    assert len(server.requests) == 1
    for name, url in (("direct", path), ("redirected", f"/to/{server.url}/file.bin")):
        download(f"{server.url}{url}", tmp_path / name)
        assert (tmp_path / name).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("inside", "hosts"),
    [
        (True, "127.0.0.1 10.1.2.3 192.168.0.1 169.254.169.254 100.64.0.1 0.0.0.0 localhost"),
        (True, "[::1] [fe80::1] [fd00::1] [::ffff:127.0.0.1] [::ffff:10.0.0.1]"),
        (False, "8.8.8.8 [2606:4700::1111] [::ffff:8.8.8.8] not.known.invalid"),
    ],
)
def test_addresses_of_private_networks_are_known_as_private(inside, hosts):
    for host in hosts.split():
        assert set(are_private(f"https://{host}/a.pth")) == {inside}, host


def test_a_proxy_resolves_hosts_itself_except_those_asked_without_it(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "inside")
    found = [(socket.AF_INET, None, None, "", ("10.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: found)
    assert are_private("https://elsewhere/a.pth") == [False]
    assert (
        are_private("https://elsewhere/a.pth", proxies=False)
        == are_private("https://inside/a")
        == [True]
    )


def test_a_server_with_an_unknown_certificate_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(DownloadError, match="certificate verify failed"):
        download(f"{server.url}/file.bin", tmp_path / "file.bin")
    assert not (tmp_path / "file.bin").exists() and not server.requests


def test_of_two_processes_one_fetches_a_file(server, tmp_path):
    server.delay = 0.2
    address = f"{server.url}/f"  # the server itself cannot be copied to a process

    def program(_):
        download(address, tmp_path / "f")
        return 0

    started = [Processes(program, [], tmp_path / f"log{n}") for n in range(2)]
    assert [process.wait(60) for process in started] == [[0], [0]]
    assert (tmp_path / "f").read_bytes() == CONTENT and len(server.requests) == 1


NO_HUB_FILE = "is not hf://[spaces/]owner/name"


def test_what_cannot_be_fetched_is_one_line(server, hub_folder):
    cases = {
        f"{server.url}/absent.pth": "Not Found",
        "https://127.0.0.1:9/file.pth": "refused",
        f"{server.url}/": "does not name a file",
        f"{server.url}/a%00b.pth": "embedded null",
        "http://127.0.0.1:9/file.pth": "only https:// protects",
        "ftp://127.0.0.1/file.pth": "only https:// protects",
        "file:///etc/passwd": "only https:// protects",
        f"{server.url}/to/http://127.0.0.1:9/file.pth": "http://127.0.0.1:9/file.pth is not down",
        f"{server.url}/to/file:///etc/passwd": "not allowed",
        "hf://owner/name/../../file.pth": NO_HUB_FILE,
        "hf://owner/name@../file.pth": NO_HUB_FILE,
        "hf://name/file.pth": NO_HUB_FILE,
        "hf://spaces/owner/name": NO_HUB_FILE,  # no model's repository
        "hf://spaces/owner/name/model/file.pth": "cannot download hf://spaces/owner/name/model",
    }
    for source, message in cases.items():
        with raises_line(DownloadError, message):
            fetch(source)


def test_a_hub_address_names_repository_file_kind_and_revision(monkeypatch):
    monkeypatch.setattr("BLIP.download.hub_file", lambda *parts: parts)
    name = "hf://spaces/yuezih/BLIP-SMILE/model/blip_smile_base.pth"
    assert fetch(name) == ("yuezih/BLIP-SMILE", "model/blip_smile_base.pth", "space", None)
    parts = ("owner/name", "file.safetensors", "model", "v1.0")
    assert fetch("hf://owner/name@v1.0/file.safetensors") == parts


def test_user_and_password_go_to_their_own_host_only(server, tmp_path):
    own = server.url.replace("https://", "https://me:S%40CRET@")
    download(f"{own}/file.bin", tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    login = base64.b64encode(b"me:S@CRET").decode()
    assert server.requests[0]["Authorization"] == f"Basic {login}"
    download(f"{own}/to/{server.url}/file.bin", tmp_path / "other.bin")
    assert [request.get("Authorization") for request in server.requests[2:]] == [None]


def test_no_error_shows_a_secret_of_an_address(server, hub_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("BLIP.download.FETCHERS", {})
    host = server.url[len("https://") :]
    for address in (
        f"https://me:SECRET@{host}/absent.pth?X-Signature=SECRET#SECRET",
        f"https://{host}/a.pth?SECRET of two words",
        f"https://me:SECRET/SECRET@{host}/a.pth",
        f"https://me:SECRET@{host}/?SECRET",
        f"{server.url}/to/http://me:SECRET@127.0.0.1:9/a.pth?SECRET",
        "http://me:SECRET@127.0.0.1:9/a.pth?SECRET",
        "s3://me:SECRET@bucket/a.pth?SECRET",
        "hf://me:SECRET@name",
    ):
        with pytest.raises(DownloadError) as error:
            fetch(address)
        assert "SECRET" not in str(error.value)
    with pytest.raises(DownloadError, match=f"https://{host}/a.pth has sha256") as error:
        download(f"https://me:SECRET@{host}/a.pth?SECRET", tmp_path / "a.pth", sha256="000")
    assert "SECRET" not in str(error.value)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:SECRET@host:8000/a/b.pth?x=SECRET#y", "https://host:8000/a/b.pth"),
        ("https://SECRET@[::1]/a", "https://[::1]/a"),
        ("https://me:SEC/RET@host/a", "https://..."),
        ("https://host?SECRET", "https://host"),
        ("hf://owner/name@v1/a.pth", "hf://owner/name@v1/a.pth"),
        ("s3://bucket/a@b.pth", "s3://bucket/a@b.pth"),
        ("photos/what?#1@home.png", "photos/what?#1@home.png"),
    ],
)
def test_an_address_is_shown_without_user_password_and_query(address, shown):
    assert without_secrets(address) == stores.without_secrets(address) == shown


URL = "https://huggingface.co/spaces/some/model/resolve/v1/a/b.json"


@pytest.fixture
def stated(monkeypatch, tmp_path):
    hashed = hashlib.sha256(b"content").hexdigest()
    stated = SimpleNamespace(size=7, etag=hashed, error=None, calls=[])

    def metadata(url, timeout):
        stated.calls.append(url)
        if stated.error:
            raise stated.error
        if "/no/" in url:
            raise ConnectionError("no such repository, or no network")
        return stated

    def fetched(repository, filename, **where):
        stated.calls.append((repository, filename, where))
        path = tmp_path / filename
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"content")
        return str(path)

    monkeypatch.setattr(hub, "get_hf_file_metadata", metadata)
    monkeypatch.setattr(hub, "hf_hub_download", fetched)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return stated


def write_cache(folder):
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")


@pytest.mark.parametrize("etag", ["", "0" * 40])  # "": the file's own SHA-256
def test_a_new_file_is_fetched(stated, tmp_path, etag):
    stated.etag = etag or stated.etag
    assert hub.hub_file("some/model", "a/b.json", "space", "v1") == tmp_path / "a/b.json"
    where = {"repo_type": "space", "revision": "v1"}
    assert stated.calls == [URL, ("some/model", "a/b.json", where)]


def test_without_a_network_a_cached_file_is_used_and_nothing_is_retried(stated, tmp_path):
    write_cache(tmp_path / "models--no--model")
    assert hub.hub_file("no/model", "config.json").read_text() == "{}"
    with pytest.raises(ConnectionError):
        hub.hub_file("no/model", "absent.json")
    assert len(stated.calls) == 2


def test_a_file_that_was_removed_from_the_hub_is_not_used_from_the_cache(stated, tmp_path):
    write_cache(tmp_path / "models--some--model")
    stated.error = EntryNotFoundError("404")
    with pytest.raises(EntryNotFoundError):
        hub.hub_file("some/model", "config.json")
    stated.error = LocalEntryNotFoundError("no network")
    assert hub.hub_file("some/model", "config.json").read_text() == "{}"


def test_a_file_with_another_hash_is_refused(stated, tmp_path):
    stated.etag = "0" * 64
    with pytest.raises(ValueError, match=r"b\.json does not have the sha256 that the hub states"):
        hub.hub_file("some/model", "a/b.json")
    assert not (tmp_path / "a" / "b.json").exists()


def test_a_file_above_the_limit_is_not_fetched(stated):
    stated.size = hub.LARGEST + 1
    with raises_line(ValueError, "has 17179869185 bytes, which exceeds the limit of 17179869184"):
        hub.hub_file("some/model", "a/b.json")
    assert len(stated.calls) == 1


def test_a_hub_without_tls_is_not_asked(stated, monkeypatch):
    template = "http://mirror/{repo_id}/resolve/{revision}/{filename}"
    for module in ("constants", "file_download"):  # where older versions read it
        name = f"huggingface_hub.{module}.HUGGINGFACE_CO_URL_TEMPLATE"
        monkeypatch.setattr(name, template, raising=False)
    with pytest.raises(ValueError, match="HF_ENDPOINT gives http://mirror"):
        hub.hub_file("some/model", "a/b.json")
    assert stated.calls == []
