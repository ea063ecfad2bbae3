"""The command line, and errors before the page starts."""

import importlib.util
import re
import socket
import sys

import pytest

from app.__main__ import command_line, main

needs_gradio = pytest.mark.skipif(
    importlib.util.find_spec("gradio") is None,
    reason="no Gradio: the web page needs Python 3.10 or later",
)


def refused(capsys, *arguments):
    assert main(list(arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@needs_gradio
def test_a_port_that_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused(capsys, "x.pth", "--port", port)
    assert line.startswith(f"error: cannot listen on 127.0.0.1:{port} (")
    assert line.endswith("choose another --port")


@needs_gradio
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.pth"], "checkpoint no.pth does not exist"),
        ([], "bash scripts/demo.sh"),
    ],
)
def test_errors_of_the_user_are_one_line(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, *arguments, "--port", "0")


def test_an_old_python_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    line = refused(capsys, "x.pth")
    assert line.startswith("error: the web page needs Python 3.10 or later, and this is 3.9: ")
    assert "PYTHON=python3.11" in line and "bash scripts/app.sh" in line


def test_missing_libraries_are_named(capsys, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = refused(capsys, "x.pth")
    assert "bash scripts/app.sh" in line and "requirements-app.txt" in line


def test_limits_of_nothing_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["x.pth", "--queue", "0"])
    assert "have to be above 0" in capsys.readouterr().err


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
