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
from torch.distributed import run as torchrun

from captioning.config import load_config
from captioning.runtime.errors import UserError

BLOCK = re.compile(r"^( *)```(?:bash|sh|shell)\n(.*?)^\1```", re.S | re.M)  # in a list, indented
OURS = re.compile(r"(?:configs|scripts|docs|tests|benchmarks)/[\w./-]+")
OWN = ("smile", "decoding", "BLIP", "baselines", "vlm", "captioning", "app", "benchmarks", "tests")
# Programs that a page may call and that are not looked into.
FOREIGN = (
    *("pip", "curl", "wget", "git", "tar", "unzip", "rm", "cp", "mv", "ls", "cat", "head"),
    *("tail", "grep", "wc", "sleep", "nohup", "ssh", "srun", "sbatch", "scontrol", "nvidia-smi"),
    *("tensorboard", "jq", "xdg-open", "ray", "node", "npm"),
)
NEEDED_BY_SCRIPTS = (
    *("bash", "dirname", "nproc", "getconf", "env", "mkdir", "basename", "tr", "cksum", "cut"),
    *("realpath", "mktemp", "tee", "timeout"),
)
# What an environment variable before a command may be called, besides what our scripts read.
KNOWN_VARIABLES = {
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "HF_ENDPOINT", "RAY_AUTH_MODE"),
    *("LMMS_EVAL_PLUGINS", "PYTHONPATH", "PYTHONSAFEPATH"),
}
OF_SLURM = {"SLURM_JOB_NODELIST": "a,b", "SLURM_JOB_ID": "1", "SLURM_NNODES": "2"}
STAND_IN = f"""#!{sys.executable} -IS
import json, os, sys
call = [os.path.basename(sys.argv[0]), *sys.argv[1:]], dict(os.environ)
with open({{record!r}}, "a") as file:  # in one piece, whoever else writes in a pipe
    file.write(json.dumps(call) + os.linesep)
if sys.argv[1:2] == ["-c"]:
    print(1)  # train.sh asks how many GPUs there are
"""


class Wrong(Exception):
    """A command that cannot work, and why."""


class _Parsed(BaseException):
    """Ends a program once its arguments are parsed; a BaseException, so that it is not caught."""


def pages(repository):
    """The Markdown pages that a user reads."""
    named = ("README.md", "docs/*.md", "data/README.md", "checkpoints/README.md")
    return sorted(path for pattern in named for path in repository.glob(pattern))


def blocks(page):
    text = page.read_text(encoding="utf-8")
    return [textwrap.dedent(block) for _, block in BLOCK.findall(text)]


class Stage:
    """A folder with the project's scripts in which blocks are run, to see what they call."""

    def __init__(self, repository, folder):
        self.repository, self.folder, self.record = repository, folder, folder / "record"
        programs = folder / "bin"
        programs.mkdir()
        shutil.copytree(repository / "scripts", folder / "scripts")
        setup = folder / "scripts" / "setup.sh"
        setup.write_text(f"echo {programs / 'python'}\n")  # nothing is to be installed
        for name in ("python", "torchrun", *FOREIGN):
            path = programs / name
            path.write_text(STAND_IN.format(record=str(self.record)))
            path.chmod(0o755)
        for name in NEEDED_BY_SCRIPTS:
            (programs / name).symlink_to(shutil.which(name))
        self.variables = {"PATH": str(programs), "HOME": str(folder), **OF_SLURM}

    def calls(self, block):
        """The words and the variables of what the block calls. Raises Wrong for what cannot run."""
        self.record.unlink(missing_ok=True)
        # What a page downloads or unpacks is not there.
        text = f"set -eu -o pipefail\ncd() {{ :; }}\n{block}"
        options = {"cwd": self.folder, "env": self.variables, "timeout": 60}
        command = [shutil.which("bash"), "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, **options)
        if done.returncode != 0:
            raise Wrong(done.stderr.strip() or f"bash ended with {done.returncode}")
        own = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE", *self.variables}
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        return [(words, variables.keys() - own) for words, variables in map(json.loads, lines)]

    def check(self, block):
        """Raises Wrong, with the command, for the first of the block's that cannot be."""
        for words, variables in self.calls(block):
            try:
                self._check(words, variables)
            except (Wrong, UserError) as error:
                raise Wrong(f"{' '.join(words)}: {error}") from error

    def _check(self, words, variables):
        program, *words = words
        scripts = "".join(path.read_text() for path in self.repository.glob("scripts/*.sh"))
        scripts += (self.repository / "tests/fuzz/examples.py").read_text()
        for name in variables - KNOWN_VARIABLES:
            if not re.search(rf"\$\{{{name}\b|\b{name}=|environ\.get\(.{name}\b", scripts):
                raise Wrong(f"no script reads the variable {name}")
        for word in words:
            if OURS.fullmatch(word) and not (self.repository / word).exists():
                raise Wrong(f"{word} does not exist")
        if program == "torchrun":
            _check_launched(words)
        elif program == "python" and words[:1] == ["-m"]:
            check_module(words[1], words[2:])


def check_module(name, words):
    """Raises Wrong for a module that does not exist or that does not take the arguments."""
    own = name.split(".")[0] in OWN
    try:
        found = importlib.util.find_spec(name if own else name.split(".")[0])
    except ModuleNotFoundError:
        found = None
    if found is None and name not in FOREIGN:
        raise Wrong(f"no module {name}")
    if not own:
        return
    if name == "captioning.launch":
        _check_launched(words)
    else:
        check_settings(arguments_of(name, words))


def _check_launched(words):
    """The arguments are torchrun's, the last of them a program and its own."""
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            given = torchrun.parse_args(words)
    except SystemExit:
        raise Wrong(said.getvalue().strip().splitlines()[-1]) from None
    if not given.module:
        raise Wrong(f"{given.training_script} is launched, and not a module (-m)")
    check_module(given.training_script, given.training_script_args)


def arguments_of(module, words):
    """What the module's own parser makes of the words. Raises Wrong."""
    parsed = []

    def stop_after(method):
        def parse(parser, *given, **more):
            parsed.append(method(parser, *given, **more))
            raise _Parsed

        return parse

    said, parser = io.StringIO(), argparse.ArgumentParser
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # runpy's, of what was imported before
        for name in ("parse_args", "parse_intermixed_args"):
            patch.setattr(parser, name, stop_after(getattr(parser, name)))
        patch.setattr(sys, "argv", [module, *words])
        try:
            with contextlib.redirect_stderr(said), contextlib.suppress(_Parsed):
                runpy.run_module(module, run_name="__main__")
        except SystemExit:
            lines = said.getvalue().strip().splitlines() or ["it ended before it read arguments"]
            raise Wrong(lines[-1]) from None
    if not parsed:
        raise Wrong("it does not read its arguments with argparse")
    return parsed[0]


def check_settings(given):
    """Raises UserError for configurations and key=value that cannot be, whatever program it is."""
    given, overrides = vars(given), list(getattr(given, "overrides", []))
    configs = [given[name] for name in ("config", "pretrain") if given.get(name) is not None]
    # That of a run is where the page's other commands leave it.
    configs = [config for config in configs if Path(config).parts[0] != "output"]
    if overrides and not configs:
        configs = ["configs/caption_coco.yaml"]
    for config in configs:
        load_config(config, overrides)
