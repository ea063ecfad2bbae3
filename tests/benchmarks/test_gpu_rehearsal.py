"""scripts/gpu.sh as a whole, on the CPU: what runs, what is said and kept, where it writes."""

import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import pytest
import transformers

from benchmarks.gpu import __main__, surroundings
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.summary import Summary

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
NOT_IN_IMAGES = ["pycocotools", "pycocoevalcap", "fairscale", "webdataset"]
OTHER_LIBRARIES = ["trl", "cut_cross_entropy", "liger_kernel"]


@pytest.fixture
def short_folder():
    """For temporary files: a loader's processes meet at a socket there, whose path may have no
    more than about 100 characters."""
    with tempfile.TemporaryDirectory(prefix="gpu") as folder:
        yield folder


@pytest.fixture
def rehearse(repository, tmp_path, short_folder):
    """Return a function that calls the script, without some modules; its status, text and JSON."""

    def call(*arguments, hidden=(), broken="nothing"):
        site, home = tmp_path / "site", tmp_path / "home"
        for folder in (site, home):
            folder.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(HIDDEN.format(hidden=list(hidden), broken=broken))
        places = {"HOME": str(home), "TMPDIR": short_folder, "PYTHONPATH": str(site)}
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
@pytest.mark.skipif(
    not hasattr(transformers, "BlipForConditionalGeneration"),
    reason=f"transformers {transformers.__version__} has no BLIP",
)
def test_a_rehearsal_runs_every_part(rehearse, repository, tmp_path, short_folder):
    """In a Python that lacks what a stock image lacks."""
    before = files_of(repository)
    status, said, content = rehearse(hidden=[*NOT_IN_IMAGES, *OTHER_LIBRARIES])
    assert status == 0, said
    assert files_of(repository) == before
    assert not files_of(tmp_path / "home", Path(short_folder))
    for name in NOT_IN_IMAGES:
        assert f"missing: {name}; it costs no part" in said
    assert content["rehearsal"] and list(content["parts"]) == [part.name for part in PARTS]
    table = said.split("\n\n")[-1].splitlines()
    for part, line in zip(PARTS, table):
        found = content["parts"][part.name]
        assert line.split()[0] == part.name and " 0 failed  0 not done" in line
        assert found["ended"] == "" and bool(found["checks"]) == bool(part.checks)
        assert bool(found["rows"]) == part.measures
        assert not any(entry["error"] or entry.get("failed") for entry in found["rows"])
    assert content["machine"]["torch"] and set(content["ceilings"]["flops"]) == {
        "fp32",
        "bf16",
        "fp16",
    }
    goal = content["parts"]["captioning"]["rows"][0]
    assert {"ours", "compiled", "transformers", "original's"} <= set(goal["contenders"])
    assert goal["contenders"]["compiled"]["share"] > 0 and goal["peer"] == "original's"
    said_of_runs = content["parts"]["runs"]["checks"][0]["said"]
    assert "stopped and resumed: 6 of 6 losses to the bit" in said_of_runs[1]


@pytest.mark.slow
def test_a_part_that_breaks_off_and_a_package_that_is_missing_cost_themselves_alone(rehearse):
    status, said, content = rehearse(
        *("--only", "runs", "input", "objective"), hidden=["pydantic"], broken="objective"
    )
    assert status == 1
    assert "missing: pydantic; it costs runs" in said
    assert content["parts"]["runs"]["ended"] == "needs pydantic"
    assert content["parts"]["objective"]["ended"] == "failed with SIGABRT: broken on purpose"
    for name in ("ceilings", "input"):
        assert content["parts"][name]["rows"] and not content["parts"][name]["ended"]


def finish(out, name, ended, lines):
    """A run of one part and the card, of which the files are there; its status and JSON."""
    (out / "parts").mkdir(exist_ok=True)
    summary = Summary(out, True, 8.0, {}, [])
    for part in PARTS:
        if part.name in ("ceilings", name):
            card = [{"row": "card", "error": "", "machine": {"gpu": "A", "torch": "2"}}]
            kept = lines if part.name == name else card
            text = "\n".join([*map(json.dumps, kept), '{"row": "cut in the mi'])
            (out / "parts" / f"{part.name}.jsonl").write_text(text)
            summary.add(part, ended if part.name == name else "", 1.0)
    summary.write("")
    return summary.show(), json.loads((out / "gpu.json").read_text())


def test_parts_of_an_earlier_run_on_the_same_card_stay(tmp_path):
    check = {"check": "a", "error": "", "said": []}
    assert finish(tmp_path, "runs", "", [{"checks": ["a"]}, check])[0] == 0
    status, content = finish(tmp_path, "input", "", [{"rows": []}])
    assert status == 0 and list(content["parts"]) == ["ceilings", "runs", "input"]
    assert content["parts"]["runs"]["checks"] == [check]
    path = tmp_path / "gpu.json"
    path.write_text(path.read_text().replace('"gpu": "A"', '"gpu": "B"'))
    assert "runs" not in finish(tmp_path, "input", "", [{"rows": []}])[1]["parts"]


@pytest.mark.parametrize(
    ("ended", "lines", "status"),
    [
        ("", [{"checks": ["a"]}, {"check": "a", "error": "wrong", "said": []}], 1),
        ("ended after 9 s, its time", [{"checks": ["a"]}], 1),
        ("failed with SIGKILL: no memory", [{"checks": []}, {"rows": ["b"]}], 1),
        ("ended after 9 s, its time", [{"rows": ["b", "c"]}, {"row": "b", "error": ""}], 0),
    ],
)
def test_the_status_says_whether_checks_failed(ended, lines, status, tmp_path, capsys):
    """A measurement that there was no time for is no failure; it is named."""
    found, content = finish(tmp_path, "input", ended, lines)
    assert found == status
    left = content["parts"]["input"]
    assert left["not_checked"] + left["not_measured"] == {0: ["c"]}.get(status, []) or status
    assert all(f": {name}" in capsys.readouterr().out for name in left["not_measured"])


def test_without_a_gpu_it_ends_in_a_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert __main__.main(["--out", str(tmp_path / "out")]) == __main__.NOTHING_DONE
    assert "there is no CUDA GPU that torch can use; --rehearse" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("print('fine')", ""),
        (
            "print('one', flush=True); raise MemoryError('no room')",
            "failed with status 1: MemoryError: no room",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "failed with SIGKILL: "),
        ("import time; time.sleep(60)", "ended after 1 s, its time"),
    ],
)
def test_how_a_process_ended_is_said(program, ended, tmp_path):
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
    assert not surroundings.is_there("made_up_for_a_test")
    problems = surroundings.install(tmp_path / "wheels", tmp_path / "packages", [])
    assert len(problems) == 1 and problems[0].startswith("of_no_python: ")
    assert surroundings.is_there("made_up_for_a_test")
    assert not list((tmp_path / "packages").glob("torch*"))


def test_parts_name_what_they_need_as_it_is_required():
    """Or a package that is missing would break a part instead of being named."""
    names = surroundings.required()
    assert {module for part in PARTS for module in part.needs} <= set(names.values())
