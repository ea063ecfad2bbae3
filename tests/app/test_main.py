"""The command line, and errors before the page starts."""

import importlib.util
import re
import socket
import sys

import pytest

from app.__main__ import command_line
from tests.programs import one_error_line

needs_gradio = pytest.mark.skipif(
    importlib.util.find_spec("gradio") is None,
    reason="no Gradio: the web page needs Python 3.10 or later",
)


@pytest.fixture
def refused(run_program):
    """Return a function that calls the program, which has to refuse in one line with parts."""

    def call(*arguments, parts):
        ended = run_program("app", *arguments)
        line = one_error_line(ended.err, parts[0])
        assert ended.code == 2 and all(part in line for part in parts)

    return call


@needs_gradio
def test_a_port_that_is_taken_is_refused(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        parts = (f"error: cannot listen on 127.0.0.1:{port} (", "choose another --port")
        refused("x.pth", "--port", port, parts=parts)


@needs_gradio
@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["no.pth"], "checkpoint no.pth does not exist"), ([], "bash scripts/demo.sh")],
)
def test_errors_of_the_user_are_one_line(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    refused(*arguments, "--port", "0", parts=[message])


def test_a_missing_gradio_is_named(refused, monkeypatch):
    monkeypatch.delitem(sys.modules, "app.server", raising=False)
    monkeypatch.setitem(sys.modules, "gradio", None)
    refused("x.pth", parts=["needs Gradio", "Python 3.10", "requirements-app.txt"])


def test_limits_of_nothing_are_refused(refused):
    refused("x.pth", "--queue", "0", parts=["have to be above 0"])


def test_the_page_has_every_flag_and_its_default(repository):
    text = (repository / "docs" / "app.md").read_text()
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| `?([\w.]+)`? \|", text, re.MULTILINE))
    defaults = {
        action.option_strings[-1]: f"{action.default:g}".replace("e+07", "0000000")
        if isinstance(action.default, float)
        else str(action.default or "none").lower()
        for action in command_line()._actions
        if action.option_strings and action.dest != "help"
    }
    assert rows == defaults
