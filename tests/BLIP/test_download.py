"""Downloads from a server in the test: whole, resumed, broken off, changed in between."""

import hashlib
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from BLIP.download import DownloadError, download, fetch

CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def server():
    """A server of CONTENT with ranges; attributes: requests, break_after, content, ranges."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.requests.append(dict(self.headers))
            if self.path.startswith("/absent"):
                self.send_error(404)
                return
            etag = '"%s"' % hashlib.md5(server.content).hexdigest()  # noqa: UP031
            start = 0
            if server.ranges and "Range" in self.headers and self.headers["If-Range"] == etag:
                start = int(self.headers["Range"][len("bytes=") : -1])
            time.sleep(server.delay)
            body = server.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", etag)
            self.end_headers()
            self.wfile.write(body if server.break_after is None else body[: server.break_after])

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.break_after, server.content, server.ranges = [], None, CONTENT, True
    server.delay = 0
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def broken_off(server, destination, after=300_000):
    server.break_after = after
    with pytest.raises(DownloadError, match="broke off after 300000 of 1024000 bytes"):
        download(f"{server.url}/file.bin", destination)
    server.break_after = None
    assert not destination.exists()


def test_a_download_that_broke_off_is_continued(server, tmp_path):
    destination = tmp_path / "new" / "file.bin"
    broken_off(server, destination)
    download(f"{server.url}/file.bin", destination)
    assert destination.read_bytes() == CONTENT
    assert server.requests[1]["Range"] == "bytes=300000-"
    assert [path.name for path in destination.parent.iterdir()] == ["file.bin"]


def test_a_changed_file_is_fetched_anew(server, tmp_path):
    destination = tmp_path / "file.bin"
    broken_off(server, destination)
    server.content = CONTENT[::-1]
    download(f"{server.url}/file.bin", destination)
    assert destination.read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_sends_all_of_it(server, tmp_path):
    server.ranges = False
    destination = tmp_path / "file.bin"
    broken_off(server, destination)
    download(f"{server.url}/file.bin", destination)
    assert destination.read_bytes() == CONTENT


def test_a_wrong_hash_leaves_nothing(server, tmp_path):
    right = hashlib.sha256(CONTENT).hexdigest()
    download(f"{server.url}/file.bin", tmp_path / "right.bin", sha256=right)
    with pytest.raises(DownloadError, match=f"has sha256 {right}, expected 000"):
        download(f"{server.url}/file.bin", tmp_path / "wrong.bin", sha256="000")
    assert {path.name for path in tmp_path.iterdir()} == {"right.bin", "wrong.bin.part.lock"}


def test_a_url_is_fetched_once(server, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    paths = [fetch(f"{server.url}/model%20a.pth?download=1") for _ in range(2)]
    assert paths[0] == paths[1]
    assert paths[0].parent == tmp_path / "checkpoints" and paths[0].name.endswith("-model a.pth")
    assert paths[0].read_bytes() == CONTENT and len(server.requests) == 1
    other = fetch(f"{server.url}/elsewhere/model%20a.pth")
    assert other != paths[0] and len(server.requests) == 2


def test_two_processes_may_want_the_same_file(server, tmp_path, repository):
    """Both get it whole, and it is fetched once."""
    server.delay = 0.5
    arguments = f"{server.url + '/f'!r}, {str(tmp_path / 'f')!r}"
    code = f"from BLIP.download import download; download({arguments})"
    started = [subprocess.Popen([sys.executable, "-c", code], cwd=repository) for _ in range(2)]
    assert [process.wait(60) for process in started] == [0, 0]
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_what_cannot_be_fetched_is_one_line(server, tmp_path, monkeypatch):
    cases = {
        f"{server.url}/absent.pth": "404|Not Found",
        "http://127.0.0.1:9/file.pth": "refused",
        "hf://name/file.pth": r"is not hf://\[spaces/\]owner/name",
        "hf://spaces/owner/name/model/file.pth": "cannot fetch hf://spaces/owner/name/model",
    }
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    for source, message in cases.items():
        with pytest.raises(DownloadError, match=message) as error:
            fetch(source)
        assert "\n" not in str(error.value)


def test_hub_names_are_taken_apart(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("BLIP.download.hub_file", lambda *names: asked.append(names) or tmp_path)
    assert fetch("hf://spaces/yuezih/BLIP-SMILE/model/blip_smile_base.pth") == tmp_path
    fetch("hf://owner/name@v1.0/file.safetensors")
    assert asked == [
        ("yuezih/BLIP-SMILE", "model/blip_smile_base.pth", "space", None),
        ("owner/name", "file.safetensors", "model", "v1.0"),
    ]
