"""A cluster that requires a token."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from captioning.bulk.request import Request
from tests.captioning.bulk.ray_cluster import caption_lightly
from tests.processes import Processes

ray = pytest.importorskip("ray", reason="requirements-cluster.txt has it")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        tuple(map(int, ray.__version__.split(".")[:2])) < (2, 60), reason="asks for no token"
    ),
]

RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]


@pytest.fixture(scope="module")
def machine():
    """The environment of a machine: its home folder has the token."""
    with tempfile.TemporaryDirectory(prefix="ray") as home:  # a socket's path is short
        kept = {name: os.environ[name] for name in os.environ if not name.startswith("RAY_")}
        machine = {**kept, "HOME": home, "RAY_USAGE_STATS_ENABLED": "0"}
        subprocess.run([*RAY, "get-auth-token", "--generate"], env=machine, check=True)
        assert Path(home, ".ray", "auth_token").exists()
        yield machine


@pytest.fixture(scope="module")
def address(machine):
    """HOST:PORT of a node that asks for a token, since the machine has one."""
    log = Path(machine["HOME"], "log")
    command = [*RAY, "start", "--head", "--port", "0", "--include-dashboard", "false", "--block"]
    command += ["--num-cpus", "1", "--object-store-memory", "100000000"]
    with log.open("w") as output:
        command += ["--temp-dir", machine["HOME"]]
        node = subprocess.Popen(command, env=machine, stdout=output, stderr=output)
    try:
        until = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert node.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        (address,) = re.findall(r"ray start --address='(\S+)'", log.read_text())
        yield address
    finally:
        node.terminate()
        node.wait(60)


VARIABLES = {
    "not-given": {},
    "absent": {"RAY_AUTH_MODE": "token", "HOME": "/nonexistent"},
    "wrong": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 64 * "0"},
}


def caption_in(variables, folder, photos):
    """Return a function of a cluster's address, for a process: caption there."""

    def call(address):
        os.environ.clear()
        os.environ.update(variables)
        return caption_lightly(address, Request(photos, folder / "a.jsonl"))

    return call


def test_without_the_token_the_error_has_the_command(address, machine, scenes, tmp_path):
    """In each way; they run at once, since each takes ten seconds."""
    machine = {**machine, "RAY_NUM_REDIS_GET_RETRIES": "1"}  # each takes a second
    runs = {}
    for name, variables in VARIABLES.items():
        call = caption_in({**machine, **variables}, tmp_path / name, str(scenes / "images"))
        runs[name] = Processes(call, address, tmp_path / f"{name}.output")
    for run in runs.values():
        assert run.wait() == [2], run.said()
        line = run.said().splitlines()[-1]
        assert line.startswith(f"error: --ray-address {address}: the cluster requires a token; ")
        assert "copy ~/.ray/auth_token" in line
        assert line.endswith("type: export RAY_AUTH_MODE=token")
