"""The quick demo with few images, from its first line to the report, killed once and continued."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chromium import open_page

RUNS = ("mle", "smile", "mle_smile")
# The demo with each list of arguments, in one process, which imports once.
PROGRAM = """
import json, sys
from captioning.demo import __main__

__main__.QUICK_SPLITS = {"train": 500, "val": 8, "test": 30}
for arguments in json.loads(sys.argv[1]):
    assert __main__.main(["--quick", *arguments]) == 0
    print("END OF DEMO", flush=True)
"""


def kill_with_children(pid):
    """Kill a process and its descendants. Its jobs would go on for a while."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(pid, signal.SIGKILL)
        for child in children:
            kill_with_children(int(child))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_demo_that_was_killed_goes_on_shows_the_effect_and_its_report(
    tmp_path, repository, request
):
    """A call scores only what has no scores of its settings: the third anew, the second nothing."""
    folder = tmp_path / "output" / "demo-quick"

    def start(*calls):
        environment = {**os.environ, "PYTHONPATH": str(repository)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes)

    killed, deadline = start([]), time.monotonic() + 250
    while not (folder / "mle" / "checkpoint_00.pth").exists():
        assert killed.poll() is None, killed.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kill_with_children(killed.pid)
    killed.communicate()
    pretrained = (folder / "pretrain" / "checkpoint_best.pth").read_bytes()
    process = start([], [], ["num_beams=1"])
    stdout, stderr = process.communicate(timeout=280)
    assert process.returncode == 0, stderr
    assert (folder / "pretrain" / "checkpoint_best.pth").read_bytes() == pretrained
    continued, again, greedy, _ = stdout.split("END OF DEMO\n")
    assert continued == again != greedy
    logs = {name: (folder / f"{name}.log").read_text() for name in ("pretrain", *RUNS)}
    assert "resuming from output/demo-quick/mle/checkpoint_0" in logs["mle"]
    assert "the first captions of the captioners" in stderr and "Warning" not in stderr
    record = json.loads((folder / "pretrain" / "run.json").read_text())
    assert "[rank 1]" not in logs["pretrain"] and record["processes"] == 2
    said = "".join(logs.values())
    assert said.count("captions and scores are in") == 2 * len(RUNS)
    # Said at the end of a run, and where it is found finished: the pre-training by the first call,
    # all four runs by the others.
    assert said.count("has finished all of its") == 4 + 1 + 4 + 4

    # The effect is weaker than the full demo's, but a broken objective would not show it.
    files = (folder / name / "result" / "test" / "metrics.json" for name in ("mle", "smile"))
    mle, smile = (json.loads(file.read_text())["metrics"] for file in files)
    assert smile["cap_len"]["value"] > 1.2 * mle["cap_len"]["value"]
    assert smile["true_facts"]["value"] > mle["true_facts"]["value"]

    page = open_page(request.getfixturevalue("browser"), f"file://{folder}/report.html")
    for width in (400, 1400):
        page.set_viewport_size({"width": width, "height": 3000})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(image => image.naturalWidth)")
