"""What the middleware refuses and passes on, before an application that echoes the body."""

import pytest

testclient = pytest.importorskip("starlette.testclient", reason="no Gradio")

from app.guard import guard  # noqa: E402  (it needs Gradio's starlette)

JOIN, CALL, UPLOAD = (f"/gradio_api/{n}" for n in ("queue/join", "call/v2/caption", "upload"))


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
    file = {"path": f"{folder}/hash/../hash/photo.png", "url": "http://evil.example", "meta": 3}
    call = {"photo": file, "fn_index": 9, "data": [5, [{"a": file}]]}
    passed = client.post(JOIN, json=call).json()
    assert (
        passed["photo"]
        == passed["data"][1][0]["a"]
        == {"path": photo, "meta": {"_type": "gradio.FileData"}}
    )


def test_what_is_no_upload_becomes_none_and_fails_no_batch(client, folder):
    outside = ("/etc/passwd", f"{folder}/../secret.png", f"{folder}/link.png", f"{folder}/no.png")
    paths = (*outside, str(folder), "", "http://evil.example/a.png", "file:///a.png")
    for photo in (*({"path": path} for path in paths), "a.png", True, [], {"size": 1}, None):
        named = {"photo": photo, "seed": 3}
        assert client.post(CALL, json=named).json() == {"photo": None, "seed": 3}
        for function in (0, "1", True):
            data = client.post(JOIN, json={"data": [photo], "fn_index": function}).json()["data"]
            assert len(data) > 20 and set(data) == {None}


def test_what_is_no_call_is_refused(client):
    """Also calls that a JSON parser accepts, but not Gradio."""
    bodies = [b"", b"{", b"[" * 900_000, b"\xff\xfe{}", b"null", b'{"data": [' + b"[" * 800]
    bodies += [b"[1]", b"{}", b'{"data": "text"}', b'{"data": [], "fn_index": null}']
    bodies += [b'{"photo": {"path": 5}}', b'{"photo": {"path": "\\u0000"}}']
    bodies += [b'{"photo": null, "prompt": "\\ud800"}', b'{"data": [], "fn_index": "x"}']
    for body in bodies:
        answer = client.post(CALL, content=body)
        assert answer.status_code == 400 and "docs/app.md" in answer.json()["error"], body


ALLOWED = """
/ /config /theme.css /assets/index-a.js /static/img/a.svg /login /gradio_api/info
/gradio_api/queue/data /gradio_api/upload_progress /gradio_api/file=/tmp/a.png
/gradio_api/call/v2/caption/0123abc
"""
REFUSED = """
/gradio_api/file=http://a/b /gradio_api/file/a /file=/etc/passwd /gradio_api/proxy=http://a/b
/gradio_api/run/predict /gradio_api/call/caption /gradio_api/stream/a /gradio_api/deep_link
/gradio_api/reset /monitoring /docs /openapi.json /gradio_api/queue/join/ //gradio_api/info
/GRADIO_API/info /gradio_api/mcp/sse
"""


def test_only_the_routes_of_the_page_and_its_api_are_open(client):
    assert [path for path in ALLOWED.split() if client.get(path).text != "read"] == []
    assert [path for path in REFUSED.split() if client.get(path).status_code != 404] == []


def test_a_page_of_another_origin_is_refused(client):
    own = [f"{scheme}://page.example:7860" for scheme in ("http", "https")]
    others = ["null", "", "http://page.example", "http://evil-page.example:7860"]
    for origin in (*own, *others, f"{own[0]}.evil.example"):
        for method, path in (("GET", "/"), ("POST", UPLOAD), ("OPTIONS", JOIN)):
            answer = client.request(method, path, headers={"Origin": origin}, content=b"x")
            assert (answer.status_code != 403) == (origin in own)
            assert not [name for name in answer.headers if name.startswith("access-control")]


def test_large_bodies_are_refused_before_they_are_read(client):
    for path, most in ((CALL, 1_000_000), ("/login", 1_000_000), (UPLOAD, 3_000_000)):
        assert client.post(path, content=bytes(most + 1)).status_code == 413
        assert client.post(path, content=bytes(most)).status_code != 413
    unknown = {"Content-Length": "5", "Transfer-Encoding": "chunked"}
    assert client.post(UPLOAD, content=b"12345", headers=unknown).status_code == 413
