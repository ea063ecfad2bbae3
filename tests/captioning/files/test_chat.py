"""The client of a chat server: the server of the test answers well, badly, late or never."""

import threading
import time

import pytest

from captioning.files import chat
from captioning.files.chat import ChatServer, Reply, RequestFailed
from captioning.runtime.errors import UserError
from tests.captioning.chat_server import said, serving
from tests.programs import raises_line

KEY = "SOME_API_KEY"
SECRET = "sk-very-secret"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(chat, "FIRST_PAUSE_S", 0)
    monkeypatch.setattr(chat, "TIMEOUT_S", 1)
    monkeypatch.setenv(KEY, SECRET)
    with serving() as server:
        yield server


def ask(server, cancelled=None):
    return ChatServer(server.url, "--url", KEY).ask({"a": "\ud800"}, cancelled or threading.Event())


HALF = (200, {"Content-Length": "999"}, "{")
TROUBLE = {
    "connection": ["close", HALF, "hang", "drip"],
    "contents": [(200, {}, text) for text in ("<html>", "[" * 9999, "x" * (5 << 20), "[]")],
    "choices": [(200, {}, f'{{"choices": {text}}}') for text in ("[]", "[1]", "[{}]", "null")],
    "types": [said(7), said([{"type": "text"}]), (200, {"Content-Encoding": "gzip"}, "{}")],
    "codes": [(code, {}, "") for code in (408, 409, 425, 429)],
    "later codes": [(code, {"Retry-After": "Sunday"}, "") for code in (500, 503, 524, 529)],
}


@pytest.mark.parametrize("answers", TROUBLE.values(), ids=TROUBLE.keys())
def test_a_request_is_repeated_after_temporary_trouble(server, answers):
    server.answers = list(answers)
    assert ask(server) == [Reply("well", False, False)]
    assert len(server.asked) == len(answers) + 1
    assert {headers["Authorization"] for _, headers, _ in server.asked} == {f"Bearer {SECRET}"}


@pytest.mark.parametrize(
    ("answer", "reason", "tries"),
    [
        ((503, {}, "bu\nsy"), "503 bu sy, after 5 tries", 5),
        ("close", "disconnected without sending a response., after 5 tries", 5),
        (
            (200, {}, "{}"),
            "200 the answer does not follow OpenAI's chat interface, after 5 tries",
            5,
        ),
        ((400, {}, f"no {SECRET}"), "400 no (the key)", 1),
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
    monkeypatch.undo()
    pauses = []

    class Patient(threading.Event):
        def wait(self, timeout=None):
            pauses.append(timeout)

    busy = [{}, {"Retry-After": "7"}, {"Retry-After": "9999"}, {"Retry-After": "3"}]
    server.answers = [(429, headers, "") for headers in busy]
    assert ask(server, Patient())[0].text == "well"
    assert pauses == [1, 7, 60, 8]


def test_a_pause_ends_when_the_answer_is_no_longer_needed(server):
    server.usual, cancelled = lambda: (503, {"Retry-After": "60"}, ""), threading.Event()
    began = time.monotonic()
    threading.Timer(0.3, cancelled.set).start()
    with pytest.raises(chat.CancelledError):
        ask(server, cancelled)
    assert time.monotonic() - began < 10 and len(server.asked) == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("A star.", "A star."),
        ("<think>It may be a disc.</think>A star.", "A star."),
        ("It may be a disc.\n</think>A star.", "A star."),
        ("<think>Is </think> the end?</think>A star.", "A star."),
        ("[THINK]A disc?[/THINK]A star.", "A star."),
        ("<seed:think>A disc?</seed:think>A star.", "A star."),
        ("◁think▷A disc?◁/think▷A star.", "A star."),
        ("<thought>A disc?</thought>A star.<think>Or not", "A star."),
        ("<think>It may be", ""),
        ([{"type": "thinking", "thinking": []}, {"type": "text", "text": "A star."}], "A star."),
    ],
)
def test_thoughts_are_not_in_the_text(server, content, text):
    server.usual = lambda: said(content)
    thinks = isinstance(content, str) and "think" in content.lower()
    assert ask(server) == [Reply(text, False, thinks or "thought" in content)]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_answers_that_are_cut_or_have_only_thoughts_say_so(server, field):
    server.usual = lambda: said("A st", None, "\ud800", finish_reason="length", **{field: "Hm"})
    assert ask(server) == [Reply("A st", True, True), Reply("", True, True), Reply("?", True, True)]


def test_a_key_over_http_to_another_host_is_one_warning(server, capfd):
    chat._warn.cache_clear()
    for _ in range(2):
        ask(server)
        assert not capfd.readouterr().err
    server.url = server.url.replace("127.0.0.1", "127.1")  # the same address
    for _ in range(2):
        ask(server)
    assert capfd.readouterr().err == (
        f"warning: {KEY} is sent unencrypted, because --url is http://\n"
    )
    assert all(headers["Authorization"] == f"Bearer {SECRET}" for _, headers, _ in server.asked)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host/v1", "host/v1", "", "https://host:x/v1", "https:///v1", "http://[::1/v1"),
        *("https://me:secret@host/v1", "https://me:secret@host:x/v1", "https://host/v1?key=secret"),
    ],
)
def test_an_address_that_cannot_be_used_is_one_line_without_it(url):
    with raises_line(UserError, "--url has to be an address such as https://host/v1") as caught:
        ChatServer(url, "--url", KEY)
    assert "secret" not in str(caught.value)


def test_a_key_that_cannot_be_sent_is_one_line_without_it(monkeypatch):
    monkeypatch.setenv(KEY, "sk-secret\nX-Other: 1")
    with raises_line(UserError, f"{KEY} in the environment has characters") as caught:
        ChatServer("https://host", "--url", KEY)
    assert "secret" not in str(caught.value)
