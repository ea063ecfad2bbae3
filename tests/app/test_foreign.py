"""The page fetches nothing from other servers, and refuses requests of other origins."""

import json
import socket
from urllib.parse import quote

import pytest

from tests.app.client import ask

pytestmark = pytest.mark.slow  # they need the server, whose start takes seconds

httpx = pytest.importorskip("httpx", reason="no Gradio, which brings httpx")


@pytest.fixture
def foreign():
    """Return the address of another server, to which nothing connects in the test."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield "{}:{}".format(*listening.getsockname())
        with pytest.raises(BlockingIOError):
            listening.accept()


def send(server, event, file, route="queue/join"):
    """Send an event with another photo than its own."""
    body = json.dumps({**event, "data": [file, *event["data"][1:]]}).encode()
    return ask(f"{server}/gradio_api/{route}", body, Content_Type="application/json")


FILES = ["file=", "gradio_api/file=", "gradio_api/file/", "%67radio_api/file="]
SCHEMES = ["http://", "HTTP://", "https://", "ftp://", "//", "/http://"]


@pytest.mark.parametrize("route", [*FILES, "proxy=", "gradio_api/proxy="])
def test_no_route_fetches_an_address(server, foreign, route):
    for scheme in SCHEMES:
        address = f"{scheme}{foreign}/private"
        for name in (address, quote(address, safe=""), quote(quote(address, safe=""), safe="")):
            for method in ("GET", "HEAD"):
                status = ask(f"{server}/{route}{name}", method=method)[0]
                assert status >= 400, (method, name)


def uploaded(server):
    """Upload a photo; return its path."""
    files = {"files": ("a.png", b"photo")}
    return httpx.post(f"{server}/gradio_api/upload", files=files, verify=False).json()[0]


def caption_event(server):
    """Return the event that the browser sends to caption a photo."""
    config = json.loads(ask(f"{server}/config")[2])
    components = {component["id"]: component for component in config["components"]}
    events = [event for event in config["dependencies"] if event["inputs"]]
    event = next(e for e in events if components[e["inputs"][0]]["type"] == "image")
    data = [components[number]["props"].get("value") for number in event["inputs"]]
    return {"fn_index": event["id"], "session_hash": "s", "data": data, "event_data": None}


EVENTS = ["queue/join", "run/predict", "api/predict", "call/caption", "call/v2/caption"]


@pytest.mark.parametrize("route", EVENTS)
@pytest.mark.parametrize("scheme", ["http://", "HTTPS://", "ftp://", "//", " http://"])
def test_no_event_fetches_an_address(server, foreign, route, scheme):
    event, here = caption_event(server), uploaded(server)
    address = f"{scheme}{foreign}/photo.jpg"
    through = f"{server}/gradio_api/proxy=http://{foreign}/photo.jpg"
    meta = {"_type": "gradio.FileData"}
    for file in (
        {"path": address},
        {"path": here, "url": address},
        {"path": here, "url": through},
        {"path": here, "url": f"{server}/gradio_api/file={address}"},
        {"path": here, "url": f"{server}/gradio_api/file=/etc/hostname"},
        {"path": quote(address, safe="")},
        [{"deeper": {"path": address, "meta": meta}}],
    ):
        found = {**file, "meta": meta} if isinstance(file, dict) else file
        status, _, answer = send(server, event, found, route)
        assert status in (400, 404) and list(json.loads(answer)) == ["error"], file


def test_no_other_file_of_the_machine_is_captioned(server, files):
    event, folder = caption_event(server), uploaded(server).rpartition("/")[0]
    outside = str(files / "photo.jpg")
    for path in (outside, folder + "/../../../../../../../.." + outside, "photo.jpg", "", 1, "\0"):
        for meta in ({"_type": "gradio.FileData"}, {}):
            assert send(server, event, {"path": path, "meta": meta})[0] == 400


def test_a_photo_that_was_uploaded_is_captioned(server):
    event, path = caption_event(server), uploaded(server)
    for url in (None, f"{server}/gradio_api/file={path}"):
        file = {"path": path, "url": url, "meta": {"_type": "gradio.FileData"}}
        assert send(server, event, file)[0] == 200
    assert ask(f"{server}/gradio_api/file={path}")[2] == b"photo"


def test_large_bodies_that_are_no_files_are_refused(server):
    for path in ("gradio_api/queue/join", "gradio_api/run/predict", "login", "no/such"):
        status, _, answer = ask(f"{server}/{path}", bytes(2 << 20))
        assert status == 413 and b"the body has more than 1048576 bytes" in answer
    assert ask(f"{server}/gradio_api/queue/join", b"[" * 100_000)[0] == 400


READS = ["", "config", "metrics", "gradio_api/queue/data?session_hash=s"]
POSTS = ["gradio_api/upload", "gradio_api/queue/join", "api/caption"]
PREFLIGHT = {"method": "OPTIONS", "Access_Control_Request_Method": "POST"}


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
    ids=str,
)
def test_another_origin_is_refused(server, host, headers):
    headers = {**headers, "Host": host} if host else headers
    for path in (*READS, *POSTS):
        for request in ({"body": b"{}" if path in POSTS else None}, PREFLIGHT):
            status, found, answer = ask(f"{server}/{path}", **request, **headers)
            assert status == 403 and b"another origin" in answer, path
            assert not [name for name in found if name.lower().startswith("access-control")]


LINK_TO_THE_PAGE = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}


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
    ],
    ids=str,
)
def test_the_page_itself_is_accepted(server, headers):
    for path in ("", "gradio_api/app_id"):
        assert ask(f"{server}/{path}", **headers)[0] == 200
    assert ask(f"{server}/api/caption?checkpoint=None", b"", **headers)[0] == 400


def test_a_link_to_the_page_is_accepted(server):
    assert ask(server, **LINK_TO_THE_PAGE)[0] == 200
    assert ask(f"{server}/gradio_api/app_id", **LINK_TO_THE_PAGE)[0] == 403
    assert ask(server, b"", **LINK_TO_THE_PAGE)[0] == 403
