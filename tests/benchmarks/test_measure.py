"""The measuring itself, and scripts/gpu.sh as a whole, on the CPU."""

import importlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks import TOPICS, gpu, measure
from benchmarks.measure import compare, peak_memory
from benchmarks.objective import library_losses
from benchmarks.topic import parse_options, run_topic
from benchmarks.training import CPU, OURS, OURS_5, OURS_SMILE, THEIRS
from BLIP.kernels.int8_linear import has_int8
from tests.programs import refused, run_program


@pytest.fixture
def seconds(monkeypatch):
    """Times to measure, by the work."""
    times = {int: [1.0, 2.0, 4.0], str: [3.0, 4.0, 4.0], list: [9.0, 9.0, 9.0]}
    queues = {work: iter(of_work) for work, of_work in times.items()}
    monkeypatch.setattr(measure, "measure_seconds", lambda work: next(queues[work]))


def test_a_row_holds_ratios_of_medians_and_of_rounds(seconds):
    row = compare({"ours": int, "theirs": str}, ["theirs"], 3, (6, "captions"))
    assert row["peer"] == "theirs"
    ours, theirs = row["contenders"]["ours"], row["contenders"]["theirs"]
    assert (ours["median"], ours["ratio"], ours["spread"]) == (2.0, 2.0, [1.0, 3.0])
    assert (ours["rate"], ours["unit"]) == (3.0, "captions")
    assert (theirs["ratio"], theirs["spread"]) == (1.0, [1.0, 1.0])
    assert theirs["times"] == [3.0, 4.0, 4.0]


def test_a_contender_that_fails_costs_itself_alone(seconds, monkeypatch):
    def fails():
        raise ValueError("no\nmemory")

    memory = {"ours": 30, "slow": 10, "fast": 20}
    monkeypatch.setattr(measure, "peak_memory", lambda size, who: memory[who] * size)
    works = {"ours": int, "broken": fails, "slow": list, "fast": str}
    row = compare(works, ["slow", "broken", "fast"], 3, builder=2, outputs=30)
    assert row["failed"] == {"broken": "ValueError('no\\nmemory')"}
    assert row["peer"] == "fast" and set(row["contenders"]) == set(memory)
    assert [each["peak_bytes"] for each in row["contenders"].values()] == [30, 0, 10]
    with pytest.raises(RuntimeError, match="no contender ran"):
        compare({"broken": fails}, [], 1)


WORKS = """
import os
import torch

def allocate(before, during):
    held = torch.ones(before, 2**20, dtype=torch.uint8)
    held.clone()
    return lambda: held.max() + torch.ones(during, 2**20, dtype=torch.uint8).max()

def die():
    os._exit(1)
"""


@pytest.mark.slow
def test_peak_memory_is_that_of_the_call(tmp_path, monkeypatch):
    """Not that held or freed before it."""
    (tmp_path / "works_to_measure.py").write_text(WORKS)  # which a new process can import
    monkeypatch.syspath_prepend(tmp_path)
    works = importlib.import_module("works_to_measure")
    for before, during in ((1, 100), (200, 100)):
        growth = peak_memory(works.allocate, before, during) / 2**20
        assert during - 1 <= growth < during + 40  # the rest of what was held may be given back
    with pytest.raises(RuntimeError, match="terminated abruptly"):
        peak_memory(works.die)


def test_rows_are_printed_and_kept_as_they_are_measured(seconds, tmp_path, capsys):
    def fails():
        raise ValueError("on purpose")

    def interrupted():
        raise KeyboardInterrupt

    row = compare({"ours": int, "theirs": str}, ["theirs"], 3, (3, "images"))
    row["notes"] = ["so"]
    options = parse_options(["--quick", "--output", str(tmp_path)], "test", rounds=7)
    cases = {"step": lambda: row, "broken": fails, "stopped": interrupted}
    with pytest.raises(KeyboardInterrupt):
        run_topic("topic", cases, options)
    content = json.loads((tmp_path / "topic.json").read_text())
    assert content["planned"] == list(cases) and content["quick"] and content["rounds"] == 1
    failed = {"name": "broken", "error": "ValueError('on purpose')"}
    assert content["rows"] == [{"name": "step", **row}, failed]
    assert content["machine"]["torch"] and content["machine"]["cores"]
    printed = capsys.readouterr().out.splitlines()
    assert printed[2] == "step"
    assert printed[4].split() == ["ours", "2000.0", "2.00", "1.00-3.00", "1.50", "images"]
    assert printed[6].strip() == "so"
    assert printed[8:] == ["broken", "  FAILED: ValueError('on purpose')"]
    assert run_topic("topic", {"step": lambda: row}, options) == 0
    assert run_topic("topic", {"step": lambda: row, "broken": fails}, options) == 1


def test_topics_run_in_turn_and_one_that_fails_counts(monkeypatch):
    ran, result = [], SimpleNamespace(returncode=1)
    monkeypatch.setattr(subprocess, "run", lambda c: ran.append(c[2:]) or result)
    assert run_program("benchmarks", "--quick").code == 1
    assert ran == [["benchmarks.topic", topic, "--quick"] for topic in TOPICS]
    result.returncode = 0
    assert run_program("benchmarks", "training").code == 0
    assert ran[-1] == ["benchmarks.topic", "training"]
    refused("benchmarks", "speed", part="'speed' is not a topic")


# Read by every Python that is started: modules that are not to be found.
HIDDEN = "import sys\nsys.modules.update(dict.fromkeys({hidden!r}))\n"
NOT_IN_IMAGES = ["pytest", "pycocotools", "pycocoevalcap", "fairscale", "cut_cross_entropy"]


def files_of(folder):
    """The files below the folder, with their times of change, but for those of other tests."""
    others = {".git", "output", ".pytest_cache", ".hypothesis", "__pycache__"}
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in files if not others & set(path.parts)}


@pytest.fixture(scope="module")
def rehearsed(needs_peer, repository, tmp_path_factory):
    """Return what scripts/gpu.sh --rehearse has written, by part.

    It runs in a Python that lacks what a stock image lacks, and writes nothing but its output.
    """
    site, home, out = (tmp_path_factory.mktemp(name) for name in ("site", "home", "out"))
    (site / "sitecustomize.py").write_text(HIDDEN.format(hidden=NOT_IN_IMAGES))
    caches = ("HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    places = {**dict.fromkeys(caches, str(home)), "PYTHONPATH": str(site)}
    before = files_of(repository)
    done = subprocess.run(
        ["bash", "scripts/gpu.sh", "--rehearse", "--out", str(out), "--minutes", "20"],
        cwd=repository,
        env={**os.environ, **places, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    assert files_of(repository) == before and not files_of(home)
    ends = [line.split() for line in done.stdout.splitlines()[-len(gpu.PARTS) :]]
    assert ends == [[part, "done"] for part in gpu.PARTS]
    return {part: json.loads((out / f"{part}.json").read_text()) for part in gpu.PARTS}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_rehearsal_runs_every_part(rehearsed):
    for content in rehearsed.values():
        assert [row["name"] for row in content["rows"]] == content["planned"]
        assert content["rows"][0]["name"].startswith("check: ")
    notes = ["6 of 6 losses to the bit, weights 0.0e+00 apart"]
    assert rehearsed["runs"]["rows"][0]["notes"] == notes


OUR_LOSSES = {"our MLE", "our SMILE", "our 0.01 MLE + 0.99 SMILE"}
LIBRARIES = {*library_losses(CPU)} - {"cut-cross-entropy, torch_compile"}  # which is hidden
INT8 = {"int8"} if has_int8(CPU) else set()
CONTENDERS = {  # {part: {start of a row's name: (its peer, its contenders)}}
    "captioning": {
        "fp32": ("transformers", {"ours", "transformers"} | INT8),
        "bf16": ("transformers", {"ours", "transformers"}),
    },
    "training": {"step": ("transformers", {OURS, OURS_SMILE, OURS_5, THEIRS})},
    "loader": {"80 x 60": ("original", {"ours", "original"})},
    "objective": {
        "SMILE": ("naive", {"from hidden states", "naive"}),
        "0.01 MLE": ("cross-entropy", {"from hidden states", "naive", "cross-entropy"}),
        "beside": (None, OUR_LOSSES | LIBRARIES),
    },
}


@pytest.mark.soak
@pytest.mark.parametrize("part", CONTENDERS)
def test_a_part_measures_its_contenders(rehearsed, part):
    rows = [row for row in rehearsed[part]["rows"] if "contenders" in row]
    for start, (peer, contenders) in CONTENDERS[part].items():
        found = [row for row in rows if row["name"].startswith(start)]
        assert len(found) == (4 if part == "captioning" else 1)
        for row in found:
            assert row["failed"] == {} and set(row["contenders"]) == contenders
            assert peer in (row["peer"], None)
            for entry in row["contenders"].values():
                assert len(entry["times"]) == 1 and entry["median"] > 0
                assert ("peak_bytes" in entry) == (part in ("objective", "training"))


def test_without_a_gpu_it_ends_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    assert run_program("benchmarks.gpu", "--out", tmp_path / "out") == (2, "", gpu.NO_GPU)


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("print('fine')", ""),
        ("raise MemoryError('no room')", "failed with 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "failed with SIGKILL"),
        ("import time; time.sleep(60)", "ended after 1 s, its time limit"),
    ],
)
def test_a_process_that_fails_or_takes_too_long_is_told_with_its_reason(program, ended):
    assert gpu.run_with_limit([sys.executable, "-c", program], os.environ, 1.0) == ended
