"""scripts/gpu.sh: which parts it runs, what it says of them, and all of it on the CPU."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.__main__ import TOPICS
from tests.benchmarks.test_topics import needs_peer

PARTS = ["checks", "objective", "loader", "decoding", "training", "captioning"]
# A Python whose GPU is there if the variable GPU is 0, and whose loader never ends.
PYTHON = """#!/bin/bash
case "$*" in
    -c*) exit "$GPU" ;;
    "-m pytest"*) echo "1 test failed"; exit 1 ;;
    "-m benchmarks loader"*) exec sleep 60 ;;
    *) echo "called: ${*:2}" ;;
esac
"""


def gpu_sh(repository, out, *arguments, **variables):
    command = ["bash", repository / "scripts/gpu.sh", *arguments]
    options = {"cwd": out.parent, "env": {**os.environ, "OUT": str(out), **variables}}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, **options)
    return done.returncode, done.stdout.splitlines()


def test_each_part_runs_within_its_time_and_says_how_it_ended(repository, tmp_path):
    python, out = tmp_path / "python", tmp_path / "a b"
    python.write_text(PYTHON)
    python.chmod(0o755)
    stand_in = {"PYTHON": "./python", "LIMIT_S": "12"}  # in the caller's folder
    code, lines = gpu_sh(repository, out, GPU="0", **stand_in)
    assert code == 1 and lines[0] == "1 test failed"
    assert lines[1] == f"called: benchmarks objective --output {out}"
    failed = {"checks": "FAILED with 1", "loader": "FAILED: its time, 3 s, was over"}
    assert lines[-6:] == [f"{part} {failed.get(part, 'done')}" for part in PARTS]
    assert (out / "log.txt").read_text().splitlines() == lines
    assert gpu_sh(repository, out, "training", GPU="0", **stand_in)[0] == 0
    code, lines = gpu_sh(repository, out, GPU="1", **stand_in)
    assert code == 2 and len(lines) == 1 and "there is no CUDA GPU" in lines[0]
    code, lines = gpu_sh(repository, out, "training", GPU="0", PYTHON=str(python), LIMIT_S="0")
    assert code == 1 and lines == ["training FAILED: its time, 0 s, was over"]


# Read by every Python that is started: modules that are not to be found.
HIDDEN = "import sys\nsys.modules.update(dict.fromkeys({hidden!r}))\n"
NOT_IN_IMAGES = ["pycocotools", "pycocoevalcap", "fairscale", "playwright"]


@pytest.mark.soak
@pytest.mark.timeout(600)
@needs_peer
def test_a_rehearsal_runs_every_part_and_writes_nothing_else(repository, tmp_path):
    site, home, out = (tmp_path / name for name in ("site", "home", "out"))
    (site / "tests").mkdir(parents=True)
    (site / "tests" / "__init__.py").touch()  # a package of this name, as some libraries install
    (site / "sitecustomize.py").write_text(HIDDEN.format(hidden=NOT_IN_IMAGES))
    places = {"HOME": str(home), "PYTHONPATH": str(site), "PYTHON": sys.executable}
    status = ["git", "-C", str(repository), "status", "--porcelain"]
    before = subprocess.check_output(status)
    code, lines = gpu_sh(repository, out, "--rehearse", LIMIT_S="1200", **places)
    assert code == 0 and lines[-6:] == [f"{part} done" for part in PARTS], lines
    assert "6 of 6 losses to the bit, weights 0.0e+00 apart" in lines
    assert subprocess.check_output(status) == before and not home.exists()
    for topic in TOPICS:
        assert json.loads((out / f"{topic}.json").read_text())["rows"]
