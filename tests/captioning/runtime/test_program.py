"""How a program of one process starts and ends: its settings, exit code and output."""

import atexit
import logging
import os
import subprocess
import sys

import pytest

from captioning.runtime.errors import UserError
from captioning.runtime.program import (
    exit_without_cleanup,
    program_parser,
    run_program,
    show_warnings,
)
from captioning.runtime.progress import log_line, progress
from captioning.runtime.signals import Stopped
from tests.processes import Processes


def raising(error):
    def program():
        raise error

    return program


def test_how_it_ends_is_its_exit_code_and_its_last_line(capsys):
    for result, code in ((None, 0), (2, 2)):
        assert run_program(lambda r=result: r) == run_program(lambda r=result: r, "stop") == code
    assert capsys.readouterr().err == ""
    for stop in (KeyboardInterrupt(), Stopped()):
        assert run_program(raising(stop), "stopped: go on") == 130
        assert capsys.readouterr() == ("", "stopped: go on\n")
    assert run_program(raising(Stopped())) == 0
    assert "run the same command again to continue" in capsys.readouterr().err
    assert run_program(raising(KeyboardInterrupt())) == 130
    with pytest.raises(ZeroDivisionError):  # a bug keeps its traceback
        run_program(lambda: 1 // 0)


HOSTILE = "\x1b]0;title\x07\x9b2J\rimage\x7f é\u3000\u200d"
SHOWN = r"\x1b]0;title\x07\x9b2J\rimage\x7f " + "é\u3000\u200d"


def test_control_characters_are_written_out_on_a_terminal(capsys, monkeypatch):
    """In errors, log lines, warnings and bars."""
    assert run_program(raising(UserError(f"{HOSTILE}: no image")), "stopped") == 2
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
    with progress(1, HOSTILE) as bar:
        bar.update()
    assert SHOWN in capsys.readouterr().err


def test_leaving_calls_exit_functions_and_writes_what_was_printed(tmp_path):
    def print_and_leave(code):
        sys.stdout.reconfigure(line_buffering=False)
        atexit.register(print, "registered")
        print("said")
        exit_without_cleanup(code)

    run = Processes(print_and_leave, 3, tmp_path / "output")
    assert run.wait() == [3] and run.said() == "said\nregistered\n"


# Prints the heavy libraries that a configuration loads, and whether any import sets anything.
IMPORTS = """
import gc, os, sys
import torch

def settings():
    ours = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}  # set by torch
    return ours, gc.isenabled(), gc.get_threshold(), torch.get_num_threads()

before = settings()
import captioning.train, captioning.evaluate
captioning.train.load_config("configs/caption_coco.yaml")
print(sorted({"torchvision", "timm", "transformers", "torch._dynamo"} & set(sys.modules)))
import captioning.report.__main__, captioning.models, app, BLIP
print(settings() == before)
"""
# What is set before torch is imported, and the collector before and in a program.
TUNED = """
import gc, os, sys
from captioning.runtime.start import tune_process
tune_process()
print(os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules, gc.isenabled())
from captioning.runtime.program import run_program
run_program(lambda: print(gc.isenabled()))
"""


@pytest.mark.parametrize(
    ("program", "given", "printed"),
    [
        (IMPORTS, {}, "[]\nTrue\n"),
        # Threads that wait sleep soon, unless the user says otherwise.
        (TUNED, {}, "10000 False False\nTrue\n"),
        (TUNED, {"OMP_WAIT_POLICY": "active"}, "None False False\nTrue\n"),
    ],
)
def test_imports_set_nothing_and_load_no_library_of_models(repository, program, given, printed):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_", "MALLOC_"))}
    command, environment = [sys.executable, "-c", program], {**kept, **given}
    output = subprocess.check_output(command, env=environment, cwd=repository, text=True)
    assert output == printed


def test_a_program_reads_the_home_folder_in_every_argument(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    parser = program_parser("program", "")
    for name in ("place", "--flag", "--text"):
        parser.add_argument(name)
    found = parser.parse_args(["~/a b", "--flag=~/c", "--text", "a ~/d"])
    assert (found.place, found.flag, found.text) == ("/home/me/a b", "/home/me/c", "a ~/d")
