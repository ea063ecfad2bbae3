"""The page with two tiny captioners, as scripts/web.sh builds and serves it."""

import os
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch

from benchmarks.captioners import TINY


@pytest.fixture(scope="session")
def captioner(make_captioner):
    """Return a tiny captioner whose captions differ from photo to photo."""
    torch.manual_seed(0)
    return make_captioner(vit={**TINY["vit"], "initializer_range": 0.3})


@pytest.fixture(scope="session")
def checkpoint(captioner, vocabulary, tmp_path_factory):
    """Return the path of the captioner's checkpoint, one.pth."""
    path = tmp_path_factory.mktemp("checkpoints") / "one.pth"
    config = {**TINY, "tokenizer": str(vocabulary)}
    torch.save({"model": captioner.state_dict(), "config": config}, path)
    return path


@pytest.fixture(scope="session")
def build(repository, tmp_path_factory):
    """Return a function that starts scripts/web.sh in a folder.

    The script is in a copy of the project, so that it neither installs nor chooses an environment.
    """
    if not (repository / "web/node_modules").is_dir():
        pytest.skip("no web/node_modules: run npm ci --prefix web")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    root = tmp_path_factory.mktemp("project")
    for entry in repository.iterdir():
        if entry.name != "scripts":
            (root / entry.name).symlink_to(entry)
    shutil.copytree(repository / "scripts", root / "scripts")
    (root / "scripts/setup.sh").write_text(f"echo '{sys.executable}'\n")
    (root / "bin").mkdir()
    (root / "bin/npm").symlink_to(shutil.which("true"))
    path = os.pathsep.join([str(root / "bin"), os.environ["PATH"]])

    def start(folder, *checkpoints):
        command = ["bash", root / "scripts/web.sh", *checkpoints]
        environment = {**os.environ, "PATH": path, "PORT": "0"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=folder, env=environment, **pipes)

    return start


class Built(NamedTuple):
    """The page's address, and the folders of the two models, which are the same captioner."""

    address: str
    one: str
    two: str


@pytest.fixture(scope="session")
def built(build, checkpoint, tmp_path_factory):
    """Serve the page of a checkpoint and of a run's folder with the same weights."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "two").mkdir()
    shutil.copy(checkpoint, folder / "two/checkpoint_best.pth")
    with build(folder, checkpoint, "two/") as server:
        try:
            line = server.stdout.readline()
            assert line.startswith("open http"), server.stderr.read()
            (one,), (two,) = ((folder / "output/web/models" / n).iterdir() for n in ("one", "two"))
            yield Built(line.split()[-1], one, two)
        finally:
            server.kill()
