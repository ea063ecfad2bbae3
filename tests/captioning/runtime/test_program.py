"""How a program of one process ends: its exit code and output."""

import atexit
import logging
import sys

import pytest

from captioning.runtime.errors import UserError, one_line
from captioning.runtime.program import leave, run_program, show_warnings
from captioning.runtime.progress import bar_prefix, log_line, progress
from captioning.runtime.signals import Stopped
from tests.processes import Processes


def raising(error):
    def program():
        raise error

    return program


def test_what_it_returns_is_its_exit_code(capsys):
    for returned, code in ((None, 0), (0, 0), (2, 2), (130, 130)):
        for line in ((), ("stop",)):
            assert run_program(lambda r=returned: r, *line) == code
    assert capsys.readouterr().err == ""


def test_a_users_mistake_is_one_line(capsys):
    assert run_program(raising(UserError("a: mend it")), "stopped") == 2
    assert capsys.readouterr().err == "error: a: mend it\n"


HOSTILE = "\x1b]0;title\x07\x9b2J\rimage\x7f é\u3000\u200d"
SHOWN = r"\x1b]0;title\x07\x9b2J\rimage\x7f " + "é\u3000\u200d"


def test_control_characters_are_written_out_on_a_terminal(capsys, monkeypatch):
    """In errors, log lines, warnings and bars."""
    assert run_program(raising(UserError(f"{HOSTILE}: no image"))) == 2
    log_line(f"{HOSTILE}: a caption\nand\ta table")
    monkeypatch.setattr(logging.root, "handlers", [])
    show_warnings()
    logging.getLogger("any").warning("skipped %s", HOSTILE)
    assert capsys.readouterr().err.splitlines() == [
        f"error: {SHOWN}: no image",
        f"{SHOWN}: a caption",
        "and\ta table",
        f"WARNING: skipped {SHOWN}",
    ]
    with bar_prefix(HOSTILE), progress(1, "captions") as bar:
        bar.update()
    assert SHOWN in capsys.readouterr().err and bar.desc == f"{SHOWN} captions"


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Stopped()])
def test_where_a_line_is_given_a_stop_ends_in_it(capsys, stop):
    for line, said in (("stopped: go on", "stopped: go on\n"), ("", "")):
        assert run_program(raising(stop), line) == 130
        assert capsys.readouterr() == ("", said)


def test_without_a_line_a_stop_ends_well_and_ctrl_c_twice_does_not(capsys):
    assert run_program(raising(Stopped())) == 0
    assert "run the same command again to continue" in capsys.readouterr().err
    assert run_program(raising(KeyboardInterrupt())) == 130


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_program(lambda: 1 // 0)


def test_an_error_is_written_on_one_line():
    for error, line in (("a\n  b\tc", "a b c"), (" \n", "ValueError"), ("x" * 200, "x" * 100)):
        assert one_line(ValueError(error)) == line


def test_leaving_calls_exit_functions_and_writes_what_was_printed(tmp_path):
    def print_and_leave(code):
        sys.stdout.reconfigure(line_buffering=False)
        atexit.register(print, "registered")
        print("said")
        leave(code)

    run = Processes(print_and_leave, 3, tmp_path / "output")
    assert run.wait() == [3] and run.said() == "said\nregistered\n"
