"""Checks the commands of a Markdown page.

bash runs each fenced block, with loops, variables and the project's scripts. Every other program is
a stand-in that records its call. A module's arguments then go to the parser of that module.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import re
import runpy
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from captioning.config import load_config

BLOCK = re.compile(r"^( *)```(?:bash|sh|shell)\n(.*?)^\1```", re.S | re.M)  # in a list, indented
OWN = ("smile", "decoding", "BLIP", "baselines", "vlm", "captioning", "app", "benchmarks", "tests")
FOREIGN = "cat cp curl jq mv npm pip ray rm scontrol sleep srun unzip"  # that pages may call
NEEDED = "bash basename cksum cut dirname env getconf mkdir mktemp nproc realpath tee timeout tr"
OF_SLURM = {"SLURM_JOB_NODELIST": "a,b", "SLURM_JOB_ID": "1", "SLURM_NNODES": "2"}
STAND_IN = f"""#!{sys.executable} -IS
import json, os, sys
with open({{record!r}}, "a") as file:  # in one piece, whoever else writes in a pipe
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + os.linesep)
if sys.argv[1:2] == ["-c"]:
    print(1)  # train.sh asks how many GPUs there are
"""


class Wrong(Exception):
    """A command that cannot work, and why."""


class _Parsed(BaseException):
    """Ends a program once its arguments are parsed; a BaseException, so that it is not caught."""


def blocks(text):
    return [textwrap.dedent(block) for _, block in BLOCK.findall(text)]


class Stage:
    """A folder with the project's scripts in which blocks are run, to see what they call."""

    def __init__(self, repository, folder):
        self.folder, self.record, programs = folder, folder / "record", folder / "bin"
        programs.mkdir()
        shutil.copytree(repository / "scripts", folder / "scripts")
        setup = folder / "scripts" / "setup.sh"
        setup.write_text(f"echo {programs / 'python'}\n")  # nothing is to be installed
        for name in ("python", *FOREIGN.split()):
            (programs / name).write_text(STAND_IN.format(record=str(self.record)))
            (programs / name).chmod(0o755)
        for name in NEEDED.split():
            (programs / name).symlink_to(shutil.which(name))
        self.variables = {"PATH": str(programs), "HOME": str(folder), **OF_SLURM}

    def check(self, block):
        """Raises Wrong, with the command, for the first of the block's that cannot be."""
        self.record.write_text("")
        # What a page downloads or unpacks is not there.
        command = [shutil.which("bash"), "-c", f"set -eu -o pipefail\ncd() {{ :; }}\n{block}"]
        options = {"cwd": self.folder, "env": self.variables, "timeout": 60}
        done = subprocess.run(command, capture_output=True, text=True, **options)
        if done.returncode != 0:
            raise Wrong(done.stderr.strip() or f"bash ended with {done.returncode}")
        for program, *words in map(json.loads, self.record.read_text().splitlines()):
            try:
                if program == "python" and words[0] == "-m":
                    _check_module(words[1], words[2:])
            except Exception as error:
                raise Wrong(f"{program} {' '.join(words)}: {error}") from error


def _check_module(name, words):
    """Raises an error for a module that does not exist or that does not take the arguments."""
    if name == "captioning.launch":  # whose arguments are torchrun's, then those of a program
        with _said_by_parser():
            given = get_args_parser().parse_args(words)
        assert given.module, f"{given.training_script} is launched, and not a module (-m)"
        _check_module(given.training_script, given.training_script_args)
    elif name.split(".")[0] in OWN:
        _check_settings(arguments_of(name, words))
    elif name not in FOREIGN and importlib.util.find_spec(name.split(".")[0]) is None:
        raise Wrong(f"no module {name}")


@contextlib.contextmanager
def _said_by_parser():
    """Raises Wrong, with the last line of stderr, where a parser ends the program."""
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            yield
    except SystemExit:
        raise Wrong(said.getvalue().strip().splitlines()[-1:]) from None


def arguments_of(module, words):
    """What the module's own parser makes of the words. Raises Wrong."""
    parsed = []

    def stop_after(method):
        def parse(parser, *given, **more):
            parsed.append(method(parser, *given, **more))
            raise _Parsed

        return parse

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # runpy's, of what was imported before
        for name in ("parse_args", "parse_intermixed_args"):
            method = stop_after(getattr(argparse.ArgumentParser, name))
            patch.setattr(argparse.ArgumentParser, name, method)
        patch.setattr(sys, "argv", [module, *words])
        with _said_by_parser(), contextlib.suppress(_Parsed):
            runpy.run_module(module, run_name="__main__")
    if not parsed:
        raise Wrong("it does not read its arguments with argparse")
    return parsed[0]


def _check_settings(given):
    """Raises UserError for configurations and key=value that cannot be, whatever program it is."""
    given, overrides = vars(given), list(getattr(given, "overrides", []))
    configs = [given[name] for name in ("config", "pretrain") if given.get(name) is not None]
    # That of a run is where the page's other commands leave it.
    configs = [config for config in configs if Path(config).parts[0] != "output"]
    if overrides and not configs:
        configs = ["configs/caption_coco.yaml"]
    for config in configs:
        load_config(config, overrides)
