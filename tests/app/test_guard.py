"""Which requests are accepted, by Host and token."""

import base64
import signal
import socket
import sys
import tempfile
from types import SimpleNamespace

import pytest

from app.guard import CHALLENGE, TOKEN_VARIABLE, Guard, read_token
from captioning.runtime.errors import UserError
from tests.programs import raises_line

SECRET = "t0ken"


@pytest.fixture
def ask():
    """Return a function that sends a request to an application and returns the answer."""
    testclient = pytest.importorskip("starlette.testclient", reason="no Gradio")

    def send(app, host="localhost:7860", authorization=None, path="/"):
        headers = {"host": host.encode("latin-1")}
        if authorization is not None:
            headers["authorization"] = authorization.encode()
        return testclient.TestClient(app).get(path, headers=headers)

    return send


async def inside(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


@pytest.mark.parametrize(
    ("bound", "host", "own"),
    [
        ("127.0.0.1", "127.0.0.1:7860", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "[::1]:7860", True),
        ("127.0.0.1", socket.gethostname(), True),
        ("127.0.0.1", "page.example:7860", True),  # named
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "user@localhost@evil.example", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "[::1", False),
        ("127.0.0.1", "local\xe9host", False),
        ("192.168.1.5", "192.168.1.5:7860", True),
        ("192.168.1.5", "192.168.1.6:7860", False),
        ("0.0.0.0", "203.0.113.9:80", True),  # an address that a router maps
        ("0.0.0.0", "evil.example", False),
    ],
)
def test_other_hosts_are_refused(ask, bound, host, own):
    answer = ask(Guard(inside, bound, ["Page.example"], None), host)
    assert answer.status_code == (200 if own else 400)
    line = answer.json().get("error", "")
    assert own or ("Host is not a name of this page" in line and "--host-name" in line)


def basic(secret):
    return "Basic " + base64.b64encode(f"anyone:{secret}".encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "known"),
    [
        (f"Bearer {SECRET}", True),
        (basic(SECRET), True),
        (None, False),
        ("Bearer", False),
        (f"Bearer {SECRET}x", False),
        ("Bearer t\u00f6ken", False),
        (basic("other"), False),
        (f"Basic {SECRET}!", False),
        (f"Digest {SECRET}", False),
    ],
)
def test_the_token_is_required(ask, authorization, known):
    answer = ask(Guard(inside, "127.0.0.1", [], SECRET), authorization=authorization)
    assert answer.status_code == (200 if known else 401)
    if not known:
        assert answer.headers["www-authenticate"] == CHALLENGE
        assert "Bearer TOKEN" in answer.json()["error"]


def test_a_token_comes_from_the_flag_or_the_environment(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert read_token(None) is None and read_token("a") == "a"
    monkeypatch.setenv(TOKEN_VARIABLE, "b")
    assert read_token(None) == "b" and read_token("a") == "a"
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    assert read_token(None) is None
    for wrong in ("", "a\nb", "t\u00f6ken", "a "):
        with raises_line(UserError, "--token"):
            read_token(wrong)


@pytest.mark.parametrize(
    ("host", "token", "warned"),
    [("0.0.0.0", None, True), ("0.0.0.0", SECRET, False), ("127.0.0.1", None, False)],
)
def test_the_server_is_behind_the_guard(ask, service, monkeypatch, capsys, host, token, warned):
    """It also warns if others can use the page without a token."""
    uvicorn = pytest.importorskip("uvicorn", reason="no Gradio, which brings uvicorn")
    pytest.importorskip("prometheus_client", reason="no prometheus_client")
    from app.connection import TimedConnection
    from app.server import listen, serve

    configs = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: configs.append(self.config))
    page = SimpleNamespace(add_page=lambda server, *_: server)
    monkeypatch.setitem(sys.modules, "app.page", page)  # its Gradio takes seconds to import
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    with listen(host, 0) as listening:
        serve(service, listening, ["page.example"], token)
    log = capsys.readouterr().err
    assert ("anyone who reaches 0.0.0.0 can caption here" in log) == warned and SECRET not in log
    app = configs[0].app
    assert configs[0].http is TimedConnection
    right = token and f"Bearer {token}"
    for path in ("/metrics", "/no/such"):
        assert ask(app, "evil.example", right, path).status_code == 400
        assert ask(app, "page.example", None, path).status_code == 401 or token is None
    answer = ask(app, "page.example", right, "/metrics")
    assert answer.status_code == 200 and "smile_batch_photos_count" in answer.text
