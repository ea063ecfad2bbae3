"""The quick demo with few images, from its first line to the report, killed once and continued.

tests/captioning/demo/test_parts.py has its parts, in this process.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.chromium import open_page

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
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


class Finished(NamedTuple):
    """The folder of a demo that was killed, and what it printed when it was called again.

    continued, again, greedy: stdout of three further calls, the last of them with num_beams=1.
    stderr: of all three.
    """

    folder: Path
    continued: str
    again: str
    greedy: str
    stderr: str

    def logs(self, *names):
        return "".join((self.folder / f"{name}.log").read_text() for name in names)

    def scores(self, run):
        """Return {metric: value}, of the last call."""
        content = json.loads((self.folder / run / "result" / "test" / "metrics.json").read_text())
        return {name: entry["value"] for name, entry in content["metrics"].items()}


def start(folder, repository, *calls):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(calls)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory, repository):
    """Return a demo that was killed in fine-tuning, continued, and called twice again."""
    root = tmp_path_factory.mktemp("demo")
    folder = root / "output" / "demo-quick"
    killed = start(root, repository, [])
    deadline = time.monotonic() + 250
    while not (folder / "mle" / "checkpoint_00.pth").exists():
        assert killed.poll() is None, killed.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kill_with_children(killed.pid)
    killed.communicate()
    pretrained = (folder / "pretrain" / "checkpoint_best.pth").read_bytes()
    demo = start(root, repository, [], [], ["num_beams=1"])
    stdout, stderr = demo.communicate(timeout=280)
    assert demo.returncode == 0, stderr
    assert (folder / "pretrain" / "checkpoint_best.pth").read_bytes() == pretrained
    continued, again, greedy, _ = stdout.split("END OF DEMO\n")
    return Finished(folder, continued, again, greedy, stderr)


def kill_with_children(pid):
    """Kill a process and its descendants. Its jobs would go on for a while."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(pid, signal.SIGKILL)
        for child in children:
            kill_with_children(int(child))


def test_demo_that_was_killed_goes_on(finished):
    assert "demo-quick/pretrain has finished all of its" in finished.logs("pretrain")
    assert "resuming from output/demo-quick/mle/checkpoint_0" in finished.logs("mle")
    # A status line every half minute.
    assert re.search(r"\d%, about \d\d:\d\d to go in all", finished.stderr)
    assert "Warning" not in finished.stderr
    first = finished.stderr.partition("the first captions of the captioners")[2]
    assert re.search(r"\.png\n  MLE    a.* .+\n  SMILE  a.* .+\n", first)
    pretrained = json.loads((finished.folder / "pretrain" / "run.json").read_text())
    assert "[rank 1]" not in finished.logs("pretrain") and pretrained["processes"] == 2


def test_demo_shows_the_effect(finished):
    # The effect is weaker than the full demo's, but a broken objective would not show it.
    mle, smile = finished.scores("mle"), finished.scores("smile")
    assert smile["cap_len"] > 1.2 * mle["cap_len"]
    assert smile["true_facts"] > mle["true_facts"]


def test_report_fits_the_screen(finished, browser):
    page = open_page(browser, f"file://{finished.folder}/report.html")
    for width in (400, 1400):
        page.set_viewport_size({"width": width, "height": 3000})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(image => image.naturalWidth)")


def test_a_call_scores_only_what_has_no_scores_of_its_settings(finished):
    """The second call only makes the report. The third scores anew, with the same weights."""
    assert finished.continued == finished.again != finished.greedy
    logs = finished.logs(*RUNS)
    assert logs.count("captions and scores are in") == 2 * len(RUNS)
    # The first call found the finished pre-training; the others found all four runs finished.
    assert finished.logs("pretrain", *RUNS).count("has finished all of its") == 1 + 4 + 4
