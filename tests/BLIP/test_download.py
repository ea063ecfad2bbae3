"""Downloads from a test server and from the hub: complete, interrupted and refused."""

import hashlib
import json
import time
from pathlib import Path

import pytest
import torch

from BLIP.download import DownloadError, download, fetch, without_secrets
from tests.processes import Processes
from tests.programs import raises_line
from tests.servers import serving

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
CERTIFICATE = Path(__file__).with_name("server.pem")


@pytest.fixture
def server(monkeypatch):
    """A TLS server of `content` that counts `requests`. It announces the length of CONTENT."""

    def answer(path, headers, body):
        server.requests += 1
        if path.startswith("/absent"):
            return 404, {}, b""
        time.sleep(server.delay)
        return 200, {"Content-Length": len(CONTENT), "Connection": "close"}, server.content

    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving(answer, CERTIFICATE) as server:
        server.requests, server.content, server.delay = 0, CONTENT, 0
        yield server


@pytest.fixture
def hub_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    return tmp_path / "hub" / "checkpoints"


def test_a_url_is_fetched_once_into_the_cache(server, hub_folder, tmp_path):
    path, again = (fetch(f"{server.url}/model%20a.pth?download=1") for _ in range(2))
    assert path == again and path.parent == hub_folder and path.name.endswith("-model a.pth")
    assert path.read_bytes() == CONTENT and server.requests == 1
    for name in ("elsewhere/model%20a.pth", "..%2f..%2f..%2fout.pth", "a/%2e%2e", "%2Ftmp%2Fx"):
        assert fetch(f"{server.url}/{name}").parent == hub_folder
    assert {path.name for path in tmp_path.iterdir()} == {"hub"} and server.requests == 5
    assert len(list(hub_folder.iterdir())) == 5


def test_of_two_processes_one_fetches_a_file_with_the_known_hash(server, tmp_path):
    url, path = f"{server.url}/file", tmp_path / "file"  # a process gets no copy of the server
    server.content = CONTENT[:-1]
    with raises_line(DownloadError, "invalid hash value"):
        download(url, path, SHA256)
    assert not path.exists()
    server.content, server.requests, server.delay = CONTENT, 0, 0.2

    def program(_):
        download(url, path, SHA256)
        return 0

    started = [Processes(program, [], tmp_path / f"log{n}") for n in range(2)]
    assert [process.wait(60) for process in started] == [[0], [0]]
    assert path.read_bytes() == CONTENT and server.requests == 1


def test_an_address_is_shown_without_user_password_and_query():
    for address, shown in {
        "https://me:SECRET@host:8000/a/b.pth?x=SECRET#y": "https://host:8000/a/b.pth",
        "https://SECRET@[::1]/a": "https://[::1]/a",
        "https://me:SEC/RET@host/a": "https://...",
        "https://host?SECRET": "https://host",
        "s3://bucket/a@b.pth": "s3://bucket/a@b.pth",
        "photos/what?#1@home.png": "photos/what?#1@home.png",
    }.items():
        assert without_secrets(address) == shown


def test_a_model_of_the_hub_is_fetched_as_safetensors_if_it_has_them(tmp_path, monkeypatch):
    asked, folder = [], tmp_path

    def snapshot(name, *, allow_patterns, repo_type, revision):
        asked.append((name, repo_type, revision))
        for name in on_hub:
            if any(Path(name).match(pattern) for pattern in allow_patterns):
                (folder / name).write_text(on_hub[name])
        return str(folder)

    monkeypatch.setattr("BLIP.download.snapshot_download", snapshot)
    config = json.dumps({"model_type": "blip"})
    names = ("vocab.txt", "a.bin", "b.bin", "a.bin.index.json", "tokenizer.json")
    on_hub = {"config.json": config, "flax.msgpack": "", **dict.fromkeys(names, "")}
    assert fetch("owner/name") == folder
    assert {path.name for path in folder.iterdir()} == on_hub.keys() - {"flax.msgpack"}
    assert fetch("hf://spaces/owner/name@v1/flax.msgpack") == folder / "flax.msgpack"
    assert asked[-1] == ("owner/name", "space", "v1")
    on_hub["a.safetensors"], folder = "", tmp_path / "other"
    folder.mkdir()
    fetch("hf://owner/name")
    assert (folder / "a.safetensors").exists() and not (folder / "a.bin").exists()
    on_hub["config.json"] = '{"model_type": "git"}'
    with raises_line(DownloadError, "its model_type is git, not blip; see model: vlm"):
        fetch("owner/name")


def test_what_cannot_be_fetched_is_one_line_without_secrets(server, hub_folder, monkeypatch):
    monkeypatch.setattr("BLIP.download.FETCHERS", {})
    no_address = "is no file's path or address at https:// or hf://"
    for source, message in {
        f"{server.url.replace('//', '//me:SECRET@')}/absent.pth?X=SECRET#SECRET": "",
        f"{server.url}/absent.pth?X-Signature=SECRET": "Not Found",
        f"{server.url}/a.pth?SECRET of two words": "InvalidURL",
        f"{server.url}/?SECRET": no_address,
        "https://127.0.0.1:9/file.pth": "refused",
        "http://me:SECRET@127.0.0.1:9/a.pth?SECRET": no_address,
        "file:///etc/passwd": no_address,
        "hf://me:SECRET@name": "is not hf://[spaces/]owner/name",
        "hf://owner/name/../../file.pth": "is not hf://[spaces/]owner/name",
        "hf://owner/name/absent.pth": "cannot download hf://owner/name/absent.pth: ",
        "output/run": "cannot download output/run, which is no path: ",
    }.items():
        with raises_line(DownloadError, message) as error:
            fetch(source)
        assert "SECRET" not in str(error.value)
    assert fetch("output/run.pth") == Path("output/run.pth")
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setattr("urllib.request._opener", None)  # from Python 3.12 on it keeps certificates
    with raises_line(DownloadError, "CERTIFICATE_VERIFY_FAILED"):
        fetch(f"{server.url}/file.pth")
