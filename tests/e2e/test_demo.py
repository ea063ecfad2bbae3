"""The quick demo from its first line to the report, killed once and continued."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from captioning.demo import runs
from captioning.demo.status import DemoProgress
from captioning.runtime.job_runner import prepare

NOT_NEEDED = {"app", "benchmarks"}  # packages
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RUNS = ("mle", "smile", "mle_smile")


@pytest.fixture(scope="module")
def project(tmp_path_factory, repository):
    """Return a copy of the parts of the repository that the demo needs."""
    root = tmp_path_factory.mktemp("demo") / "project"
    packages = {path.parent.name for path in repository.glob("*/__init__.py")}
    for name in (*sorted(packages - NOT_NEEDED), "configs", "scripts"):
        shutil.copytree(repository / name, root / name)
    shutil.copy(repository / "requirements.txt", root)
    (root / "data").mkdir()
    return root


def start(project, *arguments):
    environment = {k: v for k, v in os.environ.items() if k not in ("VENV", "PYTHON")}
    environment["VIRTUAL_ENV"] = sys.prefix
    return subprocess.Popen(
        ["bash", str(project / "scripts" / "demo.sh"), "--quick", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def finished(project):
    """Return (stdout, stderr) of a demo that continues after it was killed in fine-tuning."""
    folder = project / "output" / "demo-quick"
    first = start(project)
    deadline = time.monotonic() + 250
    while not (folder / "mle" / "checkpoint_00.pth").exists():
        assert first.poll() is None, first.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kill_with_children(first.pid)
    first.communicate()
    pretrained = (folder / "pretrain" / "checkpoint_best.pth").read_bytes()
    second = start(project)
    stdout, stderr = second.communicate(timeout=280)
    assert second.returncode == 0, stderr
    assert (folder / "pretrain" / "checkpoint_best.pth").read_bytes() == pretrained
    return stdout, stderr


def kill_with_children(pid):
    """Kill a process and its descendants. Its jobs would go on for a while."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(pid, signal.SIGKILL)
        for child in children:
            kill_with_children(int(child))


def logs(project, *runs):
    """Return the logs of the runs."""
    folder = project / "output" / "demo-quick"
    return "".join((folder / f"{run}.log").read_text() for run in runs)


def scores(project, run):
    path = project / "output" / "demo-quick" / run / "result" / "test" / "metrics.json"
    return {name: entry["value"] for name, entry in json.loads(path.read_text())["metrics"].items()}


def test_demo_that_was_killed_goes_on(finished, project):
    _, stderr = finished
    assert "demo-quick/pretrain has finished all of its" in logs(project, "pretrain")
    assert "resuming from output/demo-quick/mle/checkpoint_0" in logs(project, "mle")
    said = re.findall(r"^\[(\d+)/(\d+)\] (.+?) \(about .+ to go in all\)$", stderr, re.MULTILINE)
    assert [int(number) for number, _, _ in said] == list(range(1, 5))
    assert {total for _, total, _ in said} == {"4"}
    assert any("fine-tuning" in title for _, _, title in said)
    # A status line every half minute, with the runs that have reported progress.
    shares = r"^\[\d/4\] (MLE|SMILE|MLE \+ SMILE) \d+%.*; about .+ to go in all$"
    assert re.search(shares, stderr, re.MULTILINE)
    assert "Warning" not in stderr
    first = stderr[stderr.index("the first captions of the captioners") :]
    assert re.search(r"\.png\n  MLE    a .+\n  SMILE  a .+\n", first)
    pretrained = json.loads((project / "output/demo-quick/pretrain/run.json").read_text())
    assert "[rank 1]" not in logs(project, "pretrain") and pretrained["processes"] == 2


def test_first_captions_come_during_pre_training(tmp_path, monkeypatch, capsys):
    """The full demo's first two steps, with few images; called twice."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(runs, "SPLITS", {"train": 64, "val": 4, "test": 4})
    prepare([])
    for shown in (True, False):  # by the first call
        demo = runs.Demo(False, 0, [], "cpu")
        status = DemoProgress(demo.steps())
        for number in (0, 1):
            status.begin(number)
            status.steps[number].do(status)
            status.end()
        said = capsys.readouterr().err
        pattern = r"^images/.+\.png\n  MLE .*\n  SMILE .*$"
        assert len(re.findall(pattern, said, re.MULTILINE)) == 2 * shown, said
        assert said.count("the first captions") == shown
    begun = (tmp_path / "output/demo/first/smile/config.yaml").read_text()
    assert "pretrained: output/demo/pretrain/weights_02.pth\n" in begun
    assert "objective: smile\n" in begun


def test_demo_prints_the_scores_of_its_files(finished, project):
    stdout, _ = finished
    lines = [line for line in stdout.splitlines() if line.strip()]
    assert lines[0].split() == ["Humans", "MLE", "SMILE", "MLE+SMILE", "0.5:0.5"]
    for title, metric, digits in (("Length", "cap_len", 1), ("True facts", "true_facts", 2)):
        (line,) = (line for line in lines if line.startswith(title))
        values = re.findall(r"(\d+\.\d+) \(", line)
        assert values[1:] == [f"{scores(project, run)[metric]:.{digits}f}" for run in RUNS]
    image = next(i for i, line in enumerate(lines) if line.startswith("data/scenes-quick/images/"))
    captions = []
    for run in RUNS:
        folder = project / "output" / "demo-quick" / run
        results = json.loads((folder / "result" / "test.json").read_text())
        assert len(results) == 150 and all(result["caption"] for result in results)
        names = {f"scene_{result['image_id']:06d}.png": result["caption"] for result in results}
        captions.append(names[lines[image].rpartition("/")[2]])
    assert [line.split("  ")[-1] for line in lines[image + 2 : image + 5]] == captions


def test_demo_shows_the_effect(finished, project):
    # A weaker effect than the full demo's, but a broken objective would not show it.
    assert scores(project, "smile")["cap_len"] > 1.2 * scores(project, "mle")["cap_len"]
    assert scores(project, "smile")["true_facts"] > scores(project, "mle")["true_facts"]


def test_report_is_whole_and_needs_no_network(finished, project):
    page = (project / "output" / "demo-quick" / "report.html").read_text()
    assert "numbers are weaker" in page
    assert page.count("<svg") >= 4 and "data:image/" in page
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page)
    for run in RUNS:
        assert f"{scores(project, run)['cap_len']:.1f}" in page


def test_report_fits_the_screen(finished, project, browser):
    report = project / "output" / "demo-quick" / "report.html"
    for width in (400, 1400):
        browser.open(f"file://{report}", width=width, height=3000)
        browser.wait("document.readyState == 'complete'")
        assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask("[...document.images].every(image => image.naturalWidth)")


def run_demo(project, *arguments):
    demo = start(project, *arguments)
    stdout, stderr = demo.communicate(timeout=280)
    assert demo.returncode == 0, stderr
    return stdout


def test_demo_called_again_has_only_the_report_to_make(finished, project):
    folder = project / "output" / "demo-quick"
    before = {p: p.stat().st_mtime for p in folder.rglob("metrics.json")}
    assert run_demo(project) == finished[0]
    assert {p: p.stat().st_mtime for p in folder.rglob("metrics.json")} == before


def test_demo_with_another_setting_scores_anew(finished, project):
    """The weights stay, and scores with other settings are not reused."""
    before = logs(project, *RUNS), logs(project, "pretrain", *RUNS)
    stdout = run_demo(project, "num_beams=1")
    after = logs(project, *RUNS), logs(project, "pretrain", *RUNS)
    said = "captions and scores are in", "has finished all of its"
    counted = [b.count(line) - a.count(line) for a, b, line in zip(before, after, said)]
    assert stdout != finished[0] and counted == [3, 4]
