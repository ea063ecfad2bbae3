"""Limits of the folder of uploads."""

import json
import socket
import time
from pathlib import Path

import pytest

from app.photos import Limits
from app.uploads import NO_ROOM, Uploads
from tests.app.client import ask, caption

LIMITS = Limits(upload_mb=1, photos=1)  # room for 2 MB, in 100 files


def test_files_are_counted_wherever_they_lie(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("app.uploads.time.monotonic", lambda: now)
    uploads = Uploads(tmp_path, LIMITS)
    (tmp_path / "a").mkdir()
    assert uploads.has_room()
    for number in range(100):
        (tmp_path / "a" / f"{number}.jpg").touch()
    assert uploads.has_room()  # as of less than a second ago
    now += 1
    assert not uploads.has_room()


def test_files_that_gradio_left_behind_are_removed(tmp_path, monkeypatch):
    """Younger files and the page's examples stay."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    own, left = tmp_path / "scene.png", tmp_path / "a" / "b" / "tmp123"
    for path in (own, left):
        path.touch()
    assert Uploads(tmp_path, LIMITS, [own]).has_room() and left.exists()
    later = time.time() + 2 * 3600
    monkeypatch.setattr("app.uploads.time.time", lambda: later)
    assert Uploads(tmp_path, LIMITS, [own]).has_room()
    assert list(tmp_path.rglob("*")) == [own]


def part(content):
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    return head + content + b"\r\n"


def upload(address, parts, query=""):
    """Return status and text of the answer."""
    kind = "multipart/form-data; boundary=b"
    status, _, text = ask(
        f"{address}/gradio_api/upload{query}", parts + b"--b--\r\n", Content_Type=kind
    )
    return status, text.decode()


def folder_of(address):
    """Return the server's folder of uploads, which has the drawn examples."""
    components = json.loads(ask(f"{address}/config")[2])["components"]
    examples = next(each["props"] for each in components if each["type"] == "dataset")
    return Path(examples["samples"][0][0]["path"]).parent


def wait_until(condition):
    until = time.monotonic() + 100
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    assert condition()


@pytest.mark.slow
def test_a_full_folder_refuses_uploads_and_api_calls(server, files):
    """A batch has 4 photos of 1 MB, so that there is room for 8 MB."""
    photo = (files / "photo.jpg").read_bytes()
    for number in range(4):
        assert upload(server, part(bytes([number]) * (1 << 20)))[0] == 200
    (folder_of(server) / "a.png").write_bytes(bytes(4 << 20))
    time.sleep(1.1)
    refused = [upload(server, part(b"x")), caption(server, files / "photo.jpg")]
    for path in folder_of(server).rglob("a.png"):
        path.unlink()
    assert refused == [(400, NO_ROOM), (503, {"error": NO_ROOM})]
    time.sleep(1.1)
    assert upload(server, part(photo))[0] == caption(server, files / "photo.jpg")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("query", ["", "?upload_id=a"])
def test_a_field_that_is_no_file_is_refused(server, query):
    field = part(bytes(2 << 20)).replace(b'; filename="a.png"', b"")
    before = sorted(folder_of(server).rglob("*"))
    assert upload(server, part(b"photo") + field, query) == (400, "an upload has only files")
    assert sorted(folder_of(server).rglob("*")) == before


@pytest.mark.slow
def test_an_upload_that_is_cut_short_leaves_nothing(server):
    host, port = server.removeprefix("http://").split(":")
    before = sorted(folder_of(server).rglob("*"))
    head = (
        f"POST /gradio_api/upload HTTP/1.1\r\nHost: {host}\r\nContent-Length: 900000\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as caller:
        caller.sendall(head.encode() + part(bytes(100_000)))
        wait_until(lambda: sorted(folder_of(server).rglob("*")) != before)
    wait_until(lambda: sorted(folder_of(server).rglob("*")) == before)
