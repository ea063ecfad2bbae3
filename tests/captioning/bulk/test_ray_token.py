"""A cluster with a token, of two nodes that are started as on two machines."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.captioning.bulk.conftest import read_lines

ray = pytest.importorskip("ray", reason="requirements-cluster.txt has it")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        tuple(map(int, ray.__version__.split(".")[:2])) < (2, 60), reason="asks for no token"
    ),
]

RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]

# Each actor waits at its first image for one of another node, so that both have to caption.
CAPTION = """
import sys
from pathlib import Path
from captioning.bulk.request import Request
from tests.captioning.bulk.ray_cluster import caption_lightly
nodes = Path(sys.argv[4])

def both_begin(image):
    import time
    import ray
    (nodes / ray.get_runtime_context().get_node_id()).touch()
    until = time.monotonic() + 60
    while len(list(nodes.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.05)

request = Request(sys.argv[2], Path(sys.argv[3]), shard_size=2)
sys.exit(caption_lightly(sys.argv[1], request, both_begin))
"""


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
    """HOST:PORT of the first node, which a second one has joined."""
    log = Path(machine["HOME"], "log")
    small = ["--num-cpus", "1", "--object-store-memory", "100000000", "--block"]
    head = ["--head", "--port", "0", "--include-dashboard", "false", "--temp-dir", machine["HOME"]]
    processes = []

    def start(*more, **variables):
        with log.open("w") as output:
            command = [*RAY, "start", *more, *small]
            environment = {**machine, **variables}
            processes.append(
                subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            )
        until = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert processes[-1].poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)

    try:
        start(*head)  # which asks for a token, since the machine has one
        (address,) = re.findall(r"ray start --address='(\S+)'", log.read_text())
        start("--address", address, RAY_AUTH_MODE="token")
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)


def test_with_the_token_both_nodes_caption(address, machine, photos, tmp_path, repository):
    out, nodes = tmp_path / "captions.jsonl", tmp_path / "nodes"
    nodes.mkdir()
    command = [sys.executable, "-c", CAPTION, address, str(photos), str(out), str(nodes)]
    environment = {**machine, "RAY_AUTH_MODE": "token"}
    run = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert len(list(nodes.iterdir())) == 2
    assert [line["caption"] for line in read_lines(out)] == [
        f"of {path}" for path in sorted(map(str, photos.rglob("*.png")))
    ]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"RAY_AUTH_MODE": "token", "HOME": "/nonexistent"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 64 * "0"},
    ],
    ids=["not-given", "absent", "wrong"],
)
def test_without_the_token_the_error_has_the_command(
    address, machine, photos, tmp_path, repository, variables
):
    out = tmp_path / "captions.jsonl"
    command = [sys.executable, "-c", CAPTION, address, str(photos), str(out), str(tmp_path)]
    environment = {**machine, "RAY_NUM_REDIS_GET_RETRIES": "1", **variables}  # each takes a second
    run = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    assert run.returncode == 2
    line = run.stderr.splitlines()[-1]
    assert line.startswith(f"error: --ray-address {address}: the cluster requires a token; ")
    assert "copy ~/.ray/auth_token" in line and line.endswith("type: export RAY_AUTH_MODE=token")
