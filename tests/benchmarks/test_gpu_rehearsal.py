"""scripts/gpu.sh as a whole, on the CPU: its parts, its output, and where it writes."""

import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu import __main__, packages
from benchmarks.gpu.part import PARTS

# Read by every Python that is started: modules that are not to be found, a part that breaks off.
HIDDEN = """
import os, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
command = open("/proc/self/cmdline").read().split(chr(0))
if command[2:4] == ["benchmarks.gpu.part", {broken!r}]:
    print("broken on purpose")
    os.abort()
"""
NOT_IN_IMAGES = ["pycocotools", "pycocoevalcap", "fairscale", "webdataset", "cut_cross_entropy"]


@pytest.fixture
def short_folder():
    """For temporary files: a loader's sockets lie there, and their paths are limited to about 100
    characters."""
    with tempfile.TemporaryDirectory(prefix="gpu") as folder:
        yield folder


@pytest.fixture
def rehearse(repository, tmp_path, short_folder):
    """Return a function that calls the script with some modules hidden: its status, text, JSON."""

    def call(*arguments, hidden=(), broken="nothing"):
        site, home = tmp_path / "site", tmp_path / "home"
        for folder in (site, home):
            folder.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(HIDDEN.format(hidden=list(hidden), broken=broken))
        places = {"HOME": str(home), "TMPDIR": short_folder, "PYTHONPATH": str(site)}
        caches = ("HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
        places.update({name: str(home / name) for name in caches})
        done = subprocess.run(
            ["bash", "scripts/gpu.sh", "--rehearse", "--out", str(tmp_path / "out"), *arguments],
            cwd=repository,
            env={**os.environ, **places, "PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.stderr == ""
        path = tmp_path / "out" / "gpu.json"
        return done.returncode, done.stdout, json.loads(path.read_text())

    return call


def files_of(*folders):
    """The files below the folders, with their sizes and times of change."""
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
        and not {".git", "output", ".pytest_cache"} & set(path.parts)
        and "__pycache__" not in path.parts
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rehearsal_runs_every_part(needs_peer, rehearse, repository, tmp_path, short_folder):
    """In a Python that lacks what a stock image lacks."""
    before = files_of(repository)
    status, printed, content = rehearse("--minutes", "20", hidden=NOT_IN_IMAGES)
    assert status == 0, printed
    assert files_of(repository) == before
    assert not files_of(tmp_path / "home", Path(short_folder))
    for name in set(NOT_IN_IMAGES) & {*packages.required()}:
        assert f"missing: {name}, needed by no part" in printed
    assert content["rehearsal"] and list(content["parts"]) == [*PARTS]
    table = printed.splitlines()[-len(PARTS) - 1 :]
    for (name, part), line in zip(PARTS.items(), table):
        found = content["parts"][name]
        assert line.split()[0] == name and " 0 failed  0 not done" in line
        assert found["ended"] == "" and [row["name"] for row in found["rows"]] == found["planned"]
        checks = [row for row in found["rows"] if row["name"].startswith("check: ")]
        assert bool(checks) == bool(part.checks)
        assert bool(part.topic) == any("contenders" in row for row in found["rows"])
    assert content["parts"]["ceilings"]["machine"]["torch"]
    row = content["parts"]["captioning"]["rows"][-1]
    assert {"ours", "transformers"} <= set(row["contenders"])
    notes = content["parts"]["runs"]["rows"][0]["notes"]
    assert "stopped and resumed: 6 of 6 losses to the bit" in notes[1]


@pytest.mark.slow
def test_a_part_that_breaks_off_and_a_package_that_is_missing_cost_themselves_alone(rehearse):
    status, printed, content = rehearse(
        *("--only", "runs", "input", "objective"), hidden=["pydantic"], broken="objective"
    )
    assert status == 1
    assert "missing: pydantic, needed by runs" in printed
    parts = content["parts"]
    assert parts["runs"]["ended"] == "needs pydantic"
    assert parts["objective"]["ended"] == "failed with SIGABRT: broken on purpose"
    assert all(parts[name]["rows"] and not parts[name]["ended"] for name in ("ceilings", "input"))


def part(ended="", planned=(), rows=(), **more):
    return {
        "ended": ended,
        "lacking": False,
        "seconds": 1.0,
        "planned": planned,
        "rows": rows,
        **more,
    }


def test_parts_of_an_earlier_run_on_the_same_card_stay(tmp_path):
    here = {"gpu": "A", "torch": "2"}
    for name, machine in {"ceilings": here, "runs": here, "input": {**here, "gpu": "B"}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(part(machine=machine)))
    (tmp_path / "training.json").write_text(json.dumps(part("there was no time left")))
    assert list(__main__.parts_in(tmp_path)) == ["ceilings", "training", "runs"]


def test_parts_stay_where_the_ceilings_ended_before_their_first_row(tmp_path):
    """The newest part tells which card it is."""
    (tmp_path / "ceilings.json").write_text(json.dumps(part("there was no time left")))
    for name, gpu, second in (("objective", "B", 1), ("runs", "A", 3), ("input", "A", 2)):
        found = part(machine={"gpu": gpu, "torch": "2"}, time=f"2027-01-02T03:04:0{second}Z")
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    assert list(__main__.parts_in(tmp_path)) == ["ceilings", "runs", "input"]


def test_an_interrupted_run_writes_what_it_has(tmp_path, monkeypatch, capsys):
    """Also a part that a killed run left behind, which only has the topic's keys."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "input.json").write_text(json.dumps({"planned": ["a"], "rows": []}))

    def interrupted(command, environment, log, limit):
        if "runs" in command:
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr(__main__, "run", interrupted)
    assert __main__.main(["--rehearse", "--out", str(tmp_path), "--only", "runs", "processes"]) == 1
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    ended = {name: found["ended"] for name, found in parts.items()}
    assert ended == {"ceilings": "", "runs": "interrupted", "input": "interrupted"}
    assert "0 failed  1 not done  interrupted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (part(planned=["check: a"], rows=[{"name": "check: a"}]), 0),
        (part(planned=["check: a"], rows=[{"name": "check: a", "error": "wrong"}]), 1),
        (part("ended after 9 s, its time", ["check: a"]), 1),
        (part("failed with SIGKILL: no memory", ["b"]), 1),
        (part("ended after 9 s, its time", ["b", "c"], [{"name": "b"}]), 0),
        ({**part("needs pydantic"), "lacking": True}, 0),
    ],
)
def test_the_status_tells_whether_checks_failed(found, status, capsys):
    """A measurement that there was no time for is no failure; it is counted."""
    assert __main__.show({"input": found}) == status
    missed = len(found["planned"]) - len(found["rows"])
    assert f"{missed} not done" in capsys.readouterr().out


def test_without_a_gpu_it_ends_in_a_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert __main__.main(["--out", str(tmp_path / "out")]) == __main__.NOTHING_DONE
    assert "no CUDA GPU that torch can use; scripts/gpu.sh --rehearse" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("print('fine')", ""),
        (
            "print('one', flush=True); raise MemoryError('no room')",
            "failed with status 1: MemoryError: no room",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "failed with SIGKILL: "),
        ("import time; time.sleep(60)", "ended after 1 s, its time limit"),
    ],
)
def test_how_a_process_ended(program, ended, tmp_path):
    found = __main__.run([sys.executable, "-c", program], dict(os.environ), tmp_path / "log", 1.0)
    assert found.startswith(ended) and bool(found) == bool(ended)


def test_what_a_process_started_ends_with_it(tmp_path):
    child = "import time; time.sleep(60)"
    program = (
        "import subprocess, sys, time\n"
        f"print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True)\n"
    )
    __main__.run([sys.executable, "-c", program], dict(os.environ), tmp_path / "log", 10.0)
    state = Path(f"/proc/{int((tmp_path / 'log').read_text())}/stat")
    for _ in range(100):
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("it is still there")


def wheel(folder, name, text):
    """Write a wheel of one module, as pip takes it."""
    folder.mkdir(exist_ok=True)
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", text)
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")


def test_wheels_add_what_is_missing_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    wheel(tmp_path / "wheels", "made_up_for_a_test", "here = True\n")
    wheel(tmp_path / "wheels", "torch", "here = True\n")
    (tmp_path / "wheels" / "of_no_python-1.0-cp27-cp27m-win32.whl").write_text("")
    assert not packages.is_installed("made_up_for_a_test")
    problems = packages.install(tmp_path / "wheels", tmp_path / "packages")
    assert len(problems) == 1 and problems[0].startswith("of_no_python: ")
    assert packages.is_installed("made_up_for_a_test")
    assert not list((tmp_path / "packages").glob("torch*"))


def test_parts_name_what_they_need_as_it_is_required():
    """Or a package that is missing would break a part instead of being named."""
    names = packages.required()
    assert {m for part in PARTS.values() for m in part.needs} <= set(names.values())
