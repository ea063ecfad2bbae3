"""The command line, and errors before the page starts."""

import re
import socket
import sys

import pytest

from app.__main__ import command_line
from tests.programs import refused


def test_a_port_that_is_taken_is_refused():
    pytest.importorskip("gradio", reason="the web page needs Python 3.10 or later")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("app", "x.pth", "--port", port, part="choose another --port")
        assert f"cannot listen on 127.0.0.1:{port} (" in line


def test_errors_of_the_user_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("app", "x.pth", "--queue", "0", part="have to be above 0")
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "app.server", raising=False)
        without.setitem(sys.modules, "gradio", None)
        line = refused("app", "x.pth", part="needs Gradio")
        assert "Python 3.10" in line and "-e .[app]" in line
    pytest.importorskip("gradio", reason="the web page needs Python 3.10 or later")
    refused("app", "no.pth", "--port", "0", part="no.pth does not exist")
    refused("app", "--port", "0", part="bash scripts/demo.sh")


@pytest.mark.parametrize(("value", "token"), [("", None), ("s3cret", "s3cret")])
def test_an_empty_variable_is_no_password(monkeypatch, value, token):
    monkeypatch.setenv("APP_TOKEN", value)
    assert command_line().parse_args([]).token == token


def test_the_page_of_docs_has_the_defaults_of_flags(repository):
    text = (repository / "docs" / "app.md").read_text()
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| `?([\w.]+)`? \|", text, re.MULTILINE))
    actions = [a for a in command_line()._actions if a.option_strings and a.dest != "help"]
    defaults = {a.option_strings[-1]: a.default or "none" for a in actions}
    defaults = {flag: str(default).removesuffix(".0") for flag, default in defaults.items()}
    assert len(rows) > 5 and rows.items() <= defaults.items()
