"""A sweep as a user runs it, stopped by Ctrl-C: its runs save, and none goes on without it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.tiny_run import TINY_RUN

pytestmark = pytest.mark.slow


def test_ctrl_c_stops_all_runs_which_save(scenes, repository, tmp_path):
    config = tmp_path / "long.yaml"
    text = TINY_RUN.format(data=scenes).replace("max_epoch: 3", "max_epoch: 100000")
    config.write_text(text + "metrics: [length]\neval_every: 100000\ncheckpoint_every: null\n")
    command = ["-m", "captioning.sweep", str(config), "--mle", "0,1", "--jobs", "2", "device=cpu"]
    # As at a terminal: Ctrl-C goes to the group of the sweep, which its runs are not of.
    sweep = subprocess.Popen(
        [sys.executable, *command, "--output_dir", str(tmp_path / "sweep")],
        cwd=repository,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    folders = [tmp_path / "sweep" / name for name in ("smile", "mle")]
    deadline = time.monotonic() + 200
    while not all((folder / "log.jsonl").exists() for folder in folders):
        assert sweep.poll() is None and time.monotonic() < deadline, sweep.stderr.read()
        time.sleep(0.05)
    os.killpg(sweep.pid, signal.SIGINT)
    _, told = sweep.communicate(timeout=200)
    assert sweep.returncode == 130 and "the same command continues from here" in told
    assert "Traceback" not in told
    for folder in folders:
        lengths = (folder / "log.jsonl").stat().st_size
        assert "stopped by SIGTERM" in (folder.parent / f"{folder.name}.log").read_text()
        assert list(folder.glob("checkpoint_*.pth"))
        time.sleep(0.2)
        assert (folder / "log.jsonl").stat().st_size == lengths  # it is no longer at work
