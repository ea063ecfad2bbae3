"""The command line, and errors before the page starts."""

import re
import socket
import sys
from unittest import mock

import pytest

from app.__main__ import command_line
from tests.programs import refused


def test_errors_of_the_user_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("app", "x.pth", "--queue", "0", part="--queue: 0 is not a number of 1 or more")
    with mock.patch.dict(sys.modules, {"gradio": None}):
        sys.modules.pop("app.server", None)
        line = refused("app", "x.pth", part="needs Gradio")
        assert "Python 3.10" in line and "-e .[app]" in line
    pytest.importorskip("gradio", reason="the web page needs Python 3.10 or later")
    refused("app", "no.pth", "--port", "0", part="no.pth does not exist")
    refused("app", "--port", "0", part="bash scripts/demo.sh")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused("app", "x.pth", "--port", port, part=f"cannot listen on 127.0.0.1:{port} (")


def test_flags_have_the_defaults_of_docs_and_an_empty_variable_is_no_password(
    repository, monkeypatch
):
    monkeypatch.setenv("APP_TOKEN", "")
    text = (repository / "docs" / "app.md").read_text()
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| `?([\w.]+)`? \|", text, re.MULTILINE))
    flags = vars(command_line().parse_args([]))
    defaults = {flag: flags[flag[2:].replace("-", "_")] or "none" for flag in rows}
    assert len(rows) > 5
    assert rows == {flag: str(value) for flag, value in defaults.items()}
