"""The client of a chat server: the server of the test answers well, badly, late or never."""

import time

import pytest

from captioning.files import chat
from captioning.files.chat import ChatServer, Reply, RequestFailed
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_once
from tests.captioning.chat_server import said, serving
from tests.programs import raises_line

KEY, SECRET = "SOME_API_KEY", "sk-very-secret"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(chat, "FIRST_PAUSE_S", 0)
    monkeypatch.setattr(chat, "TIMEOUT_S", 1)
    monkeypatch.setenv(KEY, SECRET)
    with serving() as server:
        yield server


def ask(server):
    return ChatServer(server.url, "--url", KEY).ask({"a": "\ud800"})


TROUBLE = [
    *("close", "hang", (200, {"Content-Length": "999"}, "{}"), said(7), said([{"type": "text"}])),
    *(
        (200, {}, text)
        for text in ("<html>", "[" * 9999, "[]", '{"choices": []}', '{"choices": 0}')
    ),
    *((code, {"Retry-After": "Sunday"}, "{}") for code in (408, 409, 425, 429, 500, 529)),
]


@pytest.mark.parametrize("trouble", TROUBLE, ids=range(len(TROUBLE)))
def test_a_request_is_repeated_after_temporary_trouble(server, trouble):
    server.answers = [trouble]
    assert ask(server) == [Reply("well", False)] and len(server.asked) == 2
    assert {headers["Authorization"] for _, headers, _ in server.asked} == {f"Bearer {SECRET}"}


@pytest.mark.parametrize(
    ("answer", "reason", "tries"),
    [
        ((503, {}, "bu\nsy"), "503 bu sy, after 5 tries", 5),
        ((200, {}, "{}"), "200 the answer does not follow OpenAI's chat interface, after 5", 5),
        ((401, {}, f"{SECRET} is unknown"), f"401 (the key) is unknown (is {KEY} right?)", 1),
        ((418, {}, ""), "418 I'm a Teapot", 1),
    ],
)
def test_an_error_tells_what_the_server_said_and_how_often(server, answer, reason, tries):
    server.usual = lambda: answer
    with raises_line(RequestFailed, reason) as caught:
        ask(server)
    assert str(caught.value).startswith(f"{server.url}: ") and SECRET not in str(caught.value)
    assert len(server.asked) == tries and caught.value.is_temporary == (tries == 5)


def test_the_key_is_sent_to_no_other_server(server):
    with serving() as other:
        server.usual = lambda: (307, {"Location": f"{other.url}/chat/completions"}, "")
        with raises_line(RequestFailed, "307 Temporary Redirect"):
            ask(server)
        assert len(server.asked) == 1 and not other.asked


def test_pauses_double_unless_the_server_asks_for_a_longer_one(server, monkeypatch):
    pauses = []
    monkeypatch.setattr(chat, "FIRST_PAUSE_S", 1)
    monkeypatch.setattr(ChatServer.ask.retry, "sleep", pauses.append)
    server.answers = [(429, {"Retry-After": asked_for}, "") for asked_for in ("", "7", "999", "3")]
    assert ask(server)[0].text == "well" and pauses == [1, 7, 60, 8]


def test_a_pause_ends_when_the_run_is_stopped(server, monkeypatch):
    server.usual, began = lambda: (503, {"Retry-After": "60"}, ""), time.monotonic()
    monkeypatch.setattr(signals, "stop_requested", lambda: time.monotonic() > began + 1)
    with pytest.raises(signals.Stopped):
        ask(server)
    assert 1 < time.monotonic() - began < 20 and len(server.asked) == 1


@pytest.mark.parametrize(
    "content",
    [
        *("<think>A disc?</think>A star.", "A disc?\n</think>A star.", "A star.<think>Or is"),
        *("<think>Is </think> it?</think>A star.", "[THINK]A disc?[/THINK]A star."),
        *("<seed:think>A disc?</seed:think>A star.", "◁think▷A disc?◁/think▷A star."),
        *("<think>Hm</think><answer>A star.</answer>", "<|begin_of_box|>A star.<|end_of_box|>"),
        "<REASONING>A disc?</REASONING><CONCLUSION>A star.</CONCLUSION>",
    ],
)
def test_thoughts_are_not_in_the_text(server, content):
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "A star."}]
    server.usual = lambda: said("A star.", content, parts, "<think>It may")
    assert ask(server) == [*[Reply("A star.", False)] * 3, Reply("", False)]


def test_proxies_are_for_other_machines(server, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:x")
    assert ask(server)
    with raises_line(UserError, "a proxy variable in the environment: Invalid port"):
        ChatServer("http://host.example", "--url", KEY)


def test_a_key_over_http_is_one_warning(server, capfd):
    log_once.cache_clear()
    ask(server), ask(server)
    line = f"warning: {KEY} is sent unencrypted, because --url is http://\n"
    assert capfd.readouterr().err == line and len(server.asked) == 2


def test_an_address_or_key_that_cannot_be_used_is_one_line_without_it(monkeypatch):
    for rest in ("host:x/v1", "me:secret@host", "host?k=secret", "host#secret", "/v1"):
        url = f"https://{rest}"
        with raises_line(UserError, "--url has to be an address such as https://host") as caught:
            ChatServer(url, "--url", KEY)
        assert "secret" not in str(caught.value)
    monkeypatch.setenv(KEY, "sk-secret\nX-Other: 1")
    with raises_line(UserError, f"{KEY} in the environment has characters") as caught:
        ChatServer("https://host", "--url", KEY)
    assert "secret" not in str(caught.value)
