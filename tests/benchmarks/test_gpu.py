"""scripts/gpu.sh as a whole, on the CPU: its parts, its output, and where it writes."""

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from benchmarks import checks, gpu

# Read by every Python that is started: modules that are not to be found.
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""
NOT_IN_IMAGES = ["pytest", "pycocotools", "pycocoevalcap", "fairscale", "cut_cross_entropy"]


def files_of(folder):
    """The files below the folder, with their sizes and times of change."""
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
        and not {".git", "output", ".pytest_cache", "__pycache__"} & set(path.parts)
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rehearsal_runs_every_part(needs_peer, repository, tmp_path):
    """In a Python that lacks what a stock image lacks; it writes nothing but its output."""
    site, home, out = tmp_path / "site", tmp_path / "home", tmp_path / "out"
    for folder in (site, home):
        folder.mkdir()
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
    rows = {}
    for part in gpu.PARTS:
        content = json.loads((out / f"{part}.json").read_text())
        rows[part] = content["rows"]
        assert [row["name"] for row in rows[part]] == content["planned"]
        assert rows[part][0]["name"].startswith("check: ")
    assert {"ours", "transformers"} <= set(rows["captioning"][-1]["contenders"])
    assert rows["runs"][0]["notes"] == ["6 of 6 losses to the bit, weights 0.0e+00 apart"]


def test_a_check_that_fails_is_a_failed_row(monkeypatch, tmp_path):
    def fails(card):
        card.note("before")
        raise AssertionError("it differs")

    found = {"a": lambda card: card.note(str(card.device)), "b": fails}
    module = type(
        "module", (), {f"test_it_is_{name}": staticmethod(f) for name, f in found.items()}
    )
    monkeypatch.setattr(checks.importlib, "import_module", lambda _: module)
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "tests", sys.modules.get("tests"))
    assert checks.main(["part", "--quick", "--output", str(tmp_path)]) == 1
    rows = json.loads((tmp_path / "part.json").read_text())["rows"]
    assert rows == [
        {"name": "check: it is a", "notes": ["cpu"]},
        {"name": "check: it is b", "error": "AssertionError: it differs"},
    ]


def test_parts_share_the_time_and_a_failed_one_does_not_stop_the_others(
    tmp_path, monkeypatch, capsys
):
    limits = []

    def run(command, environment, limit):
        limits.append(limit)
        assert command[-1] == "--quick" and environment["CUDA_VISIBLE_DEVICES"] == ""
        return "failed with SIGABRT" if "runs" in command else ""

    monkeypatch.setattr(gpu, "run", run)
    command = ["--rehearse", "--out", str(tmp_path), "--minutes", "3", "--only"]
    assert gpu.main([*command, "captioning", "runs"]) == 1
    assert limits == [pytest.approx(90, abs=5), pytest.approx(180, abs=5)]
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines == [["runs", "failed with SIGABRT"], ["captioning", "done"]]
    assert gpu.main([*command, "captioning"]) == 0


def test_without_a_gpu_it_ends_in_a_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        gpu.main(["--out", str(tmp_path / "out")])
    assert end.value.code == 2 and capsys.readouterr().err == gpu.NO_GPU


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("print('fine')", ""),
        ("raise MemoryError('no room')", "failed with 1"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "failed with SIGKILL"),
        ("import time; time.sleep(60)", "ended after 1 s, its time limit"),
    ],
)
def test_how_a_process_ended(program, ended):
    assert gpu.run([sys.executable, "-c", program], os.environ, 1.0) == ended


def test_what_a_process_started_ends_with_it(tmp_path):
    program = f"sleep 60 & echo $! > {tmp_path}/child"
    assert gpu.run(["bash", "-c", program], os.environ, 10.0) == ""
    state = Path(f"/proc/{int((tmp_path / 'child').read_text())}/stat")
    deadline = time.monotonic() + 10
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.1)


def wheel(folder, name):
    """Write a wheel of one module, as pip takes it."""
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", "here = True\n")
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")


def test_wheels_add_what_is_missing_and_nothing_else(tmp_path):
    (tmp_path / "a_package-1.0-cp27-cp27m-win32.whl").touch()  # is for no Python here
    wheel(tmp_path, "made_up_for_a_test")
    wheel(tmp_path, "torch")
    gpu.install_missing(tmp_path, tmp_path / "packages")
    assert {path.name for path in (tmp_path / "packages").glob("*.py")} == {"made_up_for_a_test.py"}
