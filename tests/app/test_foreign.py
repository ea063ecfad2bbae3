"""The page fetches nothing from other servers, and refuses requests of other origins."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import pytest

from tests.app.client import ask

# Gradio fetches from public addresses only; with this the local server counts as one.
ALL_ARE_PUBLIC = "import safehttpx\nsafehttpx.is_public_ip = lambda ip: True\n"

httpx = pytest.importorskip("httpx", reason="no Gradio, which brings httpx")


@pytest.fixture(scope="module")
def foreign():
    """Return the address of another server, and the list of its requests."""
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"secret of another server")

        do_HEAD = do_POST = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}", asked
    server.shutdown()


@pytest.fixture(scope="module")
def page(serving, tmp_path_factory):
    """Return the address of the page, for which private addresses count as public."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(ALL_ARE_PUBLIC)
    with serving("--host-name", "page.example", PYTHONPATH=str(folder)) as (address, _):
        yield address


def ask_with_json(url, value):
    return ask(url, json.dumps(value).encode(), Content_Type="application/json")


FILES = ["file=", "gradio_api/file=", "gradio_api/file/", "%67radio_api/file="]


@pytest.mark.parametrize("route", [*FILES, "proxy=", "gradio_api/proxy="])
@pytest.mark.parametrize("scheme", ["http://", "HTTP://", "https://", "ftp://", "//", "/http://"])
def test_no_route_fetches_an_address(page, foreign, route, scheme):
    host, asked = foreign
    address = f"{scheme}{host}/private"
    for name in (address, quote(address, safe=""), quote(quote(address, safe=""), safe="")):
        for method in ("GET", "HEAD"):
            status, _, body = ask(f"{page}/{route}{name}", method=method)
            assert status >= 400 and b"secret" not in body, (method, name)
    assert asked == []


def uploaded(page):
    """Upload a photo; return its path."""
    answer = httpx.post(f"{page}/gradio_api/upload", files={"files": ("a.png", b"photo")})
    return answer.raise_for_status().json()[0]


def caption_event(page):
    """Return the event that the browser sends to caption a photo."""
    config = httpx.get(f"{page}/config").json()
    components = {component["id"]: component for component in config["components"]}
    events = [event for event in config["dependencies"] if event["inputs"]]
    event = next(e for e in events if components[e["inputs"][0]]["type"] == "image")
    data = [components[number]["props"].get("value") for number in event["inputs"]]
    return {"fn_index": event["id"], "session_hash": "s", "data": data, "event_data": None}


@pytest.mark.parametrize(
    "route", ["queue/join", "run/predict", "api/predict", "call/caption", "call/v2/caption"]
)
@pytest.mark.parametrize("scheme", ["http://", "HTTPS://", "ftp://", "//", " http://"])
def test_no_event_fetches_an_address(page, foreign, route, scheme):
    host, asked = foreign
    event, here = caption_event(page), uploaded(page)
    address = f"{scheme}{host}/photo.jpg"
    through = f"{page}/gradio_api/proxy=http://{host}/photo.jpg"
    meta = {"_type": "gradio.FileData"}
    for file in (
        {"path": address},
        {"path": here, "url": address},
        {"path": here, "url": through},
        {"path": here, "url": f"{page}/gradio_api/file={address}"},
        {"path": quote(address, safe="")},
        {"path": here, "url": f"{page}/gradio_api/file=/etc/hostname"},
        [{"deeper": {"path": address, "meta": meta}}],
    ):
        found = {**file, "meta": meta} if isinstance(file, dict) else file
        sent = {**event, "data": [found, *event["data"][1:]]}
        status, _, answer = ask_with_json(f"{page}/gradio_api/{route}", sent)
        assert status in (400, 404) and list(json.loads(answer)) == ["error"], file
    assert asked == []


def test_no_other_file_of_the_machine_is_captioned(page, files):
    event, folder = caption_event(page), uploaded(page).rpartition("/")[0]
    outside = str(files / "photo.jpg")
    for path in (outside, folder + "/../../../../../../../.." + outside, "photo.jpg", "", 1, "\0"):
        for meta in ({"_type": "gradio.FileData"}, {}):
            sent = {**event, "data": [{"path": path, "meta": meta}, *event["data"][1:]]}
            assert ask_with_json(f"{page}/gradio_api/queue/join", sent)[0] == 400


def test_a_photo_that_was_uploaded_is_captioned(page):
    event, path = caption_event(page), uploaded(page)
    for url in (None, f"{page}/gradio_api/file={path}"):
        file = {"path": path, "url": url, "meta": {"_type": "gradio.FileData"}}
        sent = {**event, "data": [file, *event["data"][1:]]}
        assert ask_with_json(f"{page}/gradio_api/queue/join", sent)[0] == 200
    assert ask(f"{page}/gradio_api/file={path}")[2] == b"photo"


def test_large_bodies_that_are_no_files_are_refused(page):
    for path in ("gradio_api/queue/join", "gradio_api/run/predict", "login", "no/such"):
        status, _, answer = ask(f"{page}/{path}", bytes(2 << 20))
        assert status == 413 and b"the body has more than 1048576 bytes" in answer
    assert ask(f"{page}/gradio_api/queue/join", b"[" * 100_000)[0] == 400


PATHS = ["", "config", "metrics", "gradio_api/queue/data?session_hash=s", "gradio_api/upload"]


@pytest.mark.parametrize("path", [*PATHS, "gradio_api/queue/join", "api/caption"])
@pytest.mark.parametrize("host", [None, "page.example", "localhost:7860"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://page.example.evil.example"},
        {"Origin": "http://evil.example@page.example:x"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"},
    ],
)
def test_another_origin_is_refused(page, path, host, headers):
    headers = {**headers, "Host": host} if host else headers
    post = path in ("gradio_api/upload", "gradio_api/queue/join", "api/caption")
    preflight = {"method": "OPTIONS", "Access_Control_Request_Method": "POST"}
    for more in ({"body": b"{}" if post else None}, preflight):
        status, found, answer = ask(f"{page}/{path}", **more, **headers)
        assert status == 403 and b"another origin" in answer
        assert not [name for name in found if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "page.example", "Origin": "http://page.example"},
        {"Host": "page.example", "Origin": "https://page.example:443"},  # https ends at a proxy
        {"Host": "page.example:443", "Origin": "https://page.example"},
        {"X_Forwarded_Host": "page.example, 10.0.0.1", "Origin": "https://page.example"},
        {"Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},  # a link to the page
    ],
)
def test_the_page_and_links_to_it_are_accepted(page, headers):
    assert ask(page, **headers)[0] == 200
    if headers.get("Sec_Fetch_Site") != "cross-site":
        assert ask(f"{page}/gradio_api/app_id", **headers)[0] == 200
        assert ask(f"{page}/api/caption?checkpoint=None", b"", **headers)[0] == 400
    else:
        assert ask(f"{page}/gradio_api/app_id", **headers)[0] == 403
        assert ask(page, b"", **headers)[0] == 403
