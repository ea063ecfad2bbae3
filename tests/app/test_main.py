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


def test_an_old_python_is_refused(refused, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    line = "error: the web page needs Python 3.10 or later, and this is 3.9: "
    refused("x.pth", parts=[line, "PYTHON=python3.11", "bash scripts/app.sh"])


def test_missing_libraries_are_named(refused, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused("x.pth", parts=["bash scripts/app.sh", "requirements-app.txt"])


def test_limits_of_nothing_are_refused(refused):
    refused("x.pth", "--queue", "0", parts=["have to be above 0"])


def test_the_page_has_every_flag_and_its_default(repository):
    text = (repository / "docs" / "app.md").read_text()
    rows = re.findall(r"^\| `(--[\w-]+)` \| `?([\w.]+)`? \|", text, re.MULTILINE)
    actions = [action for action in command_line()._actions if action.option_strings]
    assert {flag: as_number(default) for flag, default in rows} == {
        action.option_strings[-1]: as_number(str(action.default).lower())
        for action in actions
        if action.dest != "help"
    }


def as_number(text):
    """20 and 20.0 are equal."""
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text
