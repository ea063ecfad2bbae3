"""What the middleware refuses and passes on, before an application that echoes the body."""

import json

import pytest

testclient = pytest.importorskip("starlette.testclient", reason="no Gradio")

from app.guard import guard  # noqa: E402  (it needs Gradio's starlette)

JOIN, CALL, UPLOAD = (f"/gradio_api/{n}" for n in ("queue/join", "call/v2/caption", "upload"))
META = {"_type": "gradio.FileData"}


async def echo(scope, receive, send):
    body = (await receive())["body"] if scope["method"] == "POST" else b"read"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def folder(tmp_path):
    """Return the folder of uploads, with one photo. Beside it there is a file of the server."""
    (tmp_path / "uploads" / "hash").mkdir(parents=True)
    (tmp_path / "uploads" / "hash" / "photo.png").touch()
    (tmp_path / "uploads" / "link.png").symlink_to("../secret.png")
    (tmp_path / "secret.png").touch()
    return tmp_path / "uploads"


@pytest.fixture
def client(folder):
    app = guard(echo, folder=f"{folder}/", max_upload=3_000_000)
    return testclient.TestClient(app, base_url="http://page.example:7860")


def test_only_the_path_of_an_upload_is_passed_on(client, folder):
    photo = str(folder / "hash" / "photo.png")
    more = {"url": "http://evil.example", "size": "big", "meta": 3, "is_stream": True}
    for path in (photo, f"{folder}/hash/../hash/photo.png"):
        file = {"path": path, **more}
        call = {"photo": file, "fn_index": 9, "data": [5, [{"a": file}]]}
        passed = client.post(JOIN, json=call).json()
        assert passed["photo"] == passed["data"][1][0]["a"] == {"path": photo, "meta": META}


@pytest.mark.parametrize(
    "photo",
    [
        *[{"path": path} for path in ("/etc/passwd", "{folder}/../secret.png", "{folder}/hash")],
        *[{"path": path} for path in ("{folder}/link.png", "{folder}", "{folder}/no.png", "")],
        *[{"path": path} for path in ("photo.png", "http://evil.example/a.png", "file:///a.png")],
        *("a.png", 5, 0, True, [], ["path"], {"size": "big"}, None),
    ],
)
def test_what_is_no_upload_becomes_none_and_fails_no_batch(client, folder, photo):
    call = json.dumps({"photo": photo, "data": [photo], "seed": 3}).replace("{folder}", str(folder))
    assert client.post(CALL, content=call).json()["data"][0] is None
    for function in (0, 1, "0", "1", True):
        body = {**json.loads(call), "fn_index": function}
        data = client.post(JOIN, json=body).json()["data"]
        assert len(data) > 20 and set(data) == {None}
    named = {"photo": json.loads(call)["photo"], "seed": 3}
    assert client.post(CALL, json=named).json() == {"photo": None, "seed": 3}


def test_what_is_no_call_is_refused(client):
    """Also calls that a JSON parser accepts, but not Gradio."""
    bodies = [b"", b"{", b"null", b"[1]", b"\xff", b"[" * 100_000, b"1" * 10_000, b"{}"]
    bodies += [b'{"data": "text"}', b'{"data": [], "fn_index": null}', b'{"data": 5}']
    bodies += [b'{"photo": {"path": 5}}', b'{"photo": {"path": "\\u0000"}}']
    bodies += [b'{"photo": null, "prompt": "\\ud800"}', b'{"data": [], "fn_index": "x"}']
    for body in bodies:
        answer = client.post(CALL, content=body)
        assert answer.status_code == 400 and "docs/app.md" in answer.json()["error"], body


ALLOWED = [
    *("/", "/config", "/theme.css", "/assets/index-a.js", "/static/img/a.svg", "/login"),
    *("/gradio_api/info", "/gradio_api/queue/data", "/gradio_api/upload_progress"),
    *("/gradio_api/file=/tmp/a.png", "/gradio_api/call/v2/caption/0123abc"),
]
REFUSED = [
    *("/gradio_api/file=http://a/b", "/gradio_api/file/a", "/file=/etc/passwd"),
    *("/gradio_api/proxy=http://a/b", "/proxy=http://a/b", "/gradio_api/run/predict"),
    *("/gradio_api/api/predict", "/gradio_api/call/caption", "/gradio_api/component_server"),
    *("/gradio_api/stream/a", "/gradio_api/deep_link", "/gradio_api/run-history/records"),
    *("/gradio_api/reset", "/gradio_api/cancel", "/monitoring", "/docs", "/openapi.json", "/x"),
    *("/gradio_api/queue/join/", "//gradio_api/info", "/GRADIO_API/info", "/gradio_api/mcp/sse"),
]


def test_only_the_routes_of_the_page_and_its_api_are_open(client):
    assert [path for path in ALLOWED if client.get(path).text != "read"] == []
    assert [path for path in REFUSED if client.get(path).status_code != 404] == []


@pytest.mark.parametrize(
    ("origin", "own"),
    [
        *[(f"{scheme}://page.example:7860", True) for scheme in ("http", "https")],
        *[(origin, False) for origin in ("http://evil.example", "null", "", "http://page.example")],
        ("http://page.example:7860.evil.example", False),
        ("http://evil-page.example:7860", False),
    ],
)
def test_a_page_of_another_origin_is_refused(client, origin, own):
    for method, path in (("GET", "/"), ("POST", UPLOAD), ("OPTIONS", JOIN)):
        answer = client.request(method, path, headers={"Origin": origin}, content=b"x")
        assert (answer.status_code != 403) == own
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_large_bodies_are_refused_before_they_are_read(client):
    for path, most in ((CALL, 1_000_000), (JOIN, 1_000_000), ("/login", 1_000_000), (UPLOAD, 3e6)):
        assert client.post(path, content=bytes(int(most) + 1)).status_code == 413
        assert client.post(path, content=bytes(int(most))).status_code != 413
    unknown = {"Content-Length": "5", "Transfer-Encoding": "chunked"}
    assert client.post(UPLOAD, content=b"12345", headers=unknown).status_code == 413
