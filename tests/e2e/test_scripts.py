"""The commands that the scripts run, recorded by a stand-in for Python."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from benchmarks.__main__ import TOPICS
from tests.programs import one_error_line

# Records its folder, its variables and its arguments, and fails if FAILING is among these.
PYTHON = f"""#!{sys.executable}
import json, os, sys
words = " ".join(sys.argv[1:])
if "version_info" in words or "torch.cuda" in words:
    sys.exit(print(os.environ["GPUS"]))  # torch counts at least 1
with open(f"{{sys.argv[0]}}.calls", "a") as file:
    print(json.dumps([os.getcwd(), dict(os.environ), sys.argv[1:]]), file=file)
sys.exit(os.environ.get("FAILING", "nothing") in words)
"""
UV = '#!/bin/sh\necho "$@" >>"$0.log" # everything is installed\n'


class Scripts:
    """A copy of the scripts whose Python is the stand-in, called from the folder `caller`."""

    def __init__(self, repository, folder):
        self.root, self.caller, self.active = (folder / n for n in ("project", "caller", "active"))
        shutil.copytree(repository / "scripts", self.root / "scripts")
        self.caller.mkdir()
        self.programs = self.active / "bin"
        self.programs.mkdir(parents=True)
        for name, text in {"python": PYTHON, "uv": UV, "nvidia-smi": ""}.items():
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)

    def run(self, script, *arguments, gpus=1, **variables):
        """Return the finished script, and folder, variables and arguments of its calls of Python.

        gpus: how many torch counts.
        """
        environment = {"PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}"}
        environment.update(VIRTUAL_ENV=str(self.active), GPUS=str(gpus), **variables)
        command = ["bash", self.root / "scripts" / script, *arguments]
        calls = self.programs / "python.calls"
        calls.write_text("")
        options = {"cwd": self.caller, "env": environment, "capture_output": True}
        done = subprocess.run(command, text=True, **options)
        return done, [json.loads(line) for line in calls.read_text().splitlines()]

    def launch(self, *command, **settings):
        """Return threads and arguments of a script's only program, in the caller's folder."""
        done, calls = self.run(*command, **settings)
        assert done.returncode == 0, done.stderr
        ((folder, variables, words),) = calls
        assert (folder, variables["PYTHONPATH"]) == (str(self.caller), str(self.root))
        assert variables["PYTHONSAFEPATH"]  # a captioning.py among photos is not imported
        return variables.get("OMP_NUM_THREADS"), words


@pytest.fixture
def scripts(repository, tmp_path):
    return Scripts(repository, tmp_path)


TRAIN = ["-m", "captioning.train", "--config"]
COCO = [*TRAIN, "configs/caption_coco.yaml"]
ODD = ["prompt=a photo of ", "b.yaml", "--resume"]


@pytest.mark.parametrize(
    ("command", "variables", "given"),
    [
        # A first YAML is the configuration, and the rest is passed on.
        (["train.sh", "my configs/a.yml", *ODD], {}, [*TRAIN, "my configs/a.yml", *ODD]),
        (["train.sh", "med_config=sizes.yaml"], {}, [*COCO, "med_config=sizes.yaml"]),
        # The user's split comes after the default one, and the last one counts.
        (["eval.sh", "a=1"], {}, [*COCO, "--evaluate", "--eval_split", "test", "a=1"]),
        (["eval.sh"], {"EVAL_SPLIT": "val"}, [*COCO, "--evaluate", "--eval_split", "val"]),
        (["demo.sh", "--quick", *ODD], {}, ["-m", "captioning.demo", "--quick", *ODD]),
        (["app.sh", "my run", "--port", "8"], {}, ["-m", "app", "my run", "--port", "8"]),
        # One process, without torchrun, where a number or a device is given.
        (["train.sh"], {"gpus": 4, "NPROC_PER_NODE": "1"}, COCO),
        (["train.sh", "--device", "cpu"], {"gpus": 4}, [*COCO, "--device", "cpu"]),
        (["caption.sh", "--url", "a"], {"gpus": 8}, ["-m", "captioning.caption", "--url", "a"]),
    ],
)
def test_a_script_runs_its_program_in_the_callers_folder(scripts, command, variables, given):
    assert scripts.launch(*command, **variables) == (None, given)


def test_a_configuration_that_the_caller_lacks_is_the_projects(scripts):
    own = scripts.root / "configs" / "own.yaml"
    own.parent.mkdir()
    own.touch()
    assert scripts.launch("eval.sh", "configs/own.yaml")[1][:4] == [*TRAIN, str(own)]
    shutil.copytree(own.parent, scripts.caller / "configs")
    assert scripts.launch("train.sh", "configs/own.yaml")[1] == [*TRAIN, "configs/own.yaml"]


def test_ray_is_installed_only_for_captions_by_ray(scripts):
    for flags in ([], ["--engine", "ray"], ["--engine=ray", "--sidecar"]):
        words = ["my runs/a", "shards/{00..99}.tar", "--glob", "--engine ray a", *flags]
        (scripts.programs / "uv.log").unlink(missing_ok=True)
        given = ["-m", "captioning.caption", *words]
        assert scripts.launch("caption.sh", *words) == (None, given)
        log = (scripts.programs / "uv.log").read_text()
        assert ("--extra cluster" in log) == bool(flags)


TWO_NODES = {"NNODES": "2", "RDZV_ENDPOINT": "a:29400"}
MEET = "--rdzv_backend c10d --rdzv_endpoint a:29400 --rdzv_id smile"


@pytest.mark.parametrize(
    ("variables", "nodes", "processes", "meeting"),
    [
        ({"gpus": 4}, "1", 4, "--standalone"),
        ({"gpus": 8, "NPROC_PER_NODE": "2"}, "1", 2, "--standalone"),
        (TWO_NODES, "2", 1, MEET),
    ],
)
def test_processes_meet_and_share_the_cores(scripts, variables, nodes, processes, meeting):
    launched = ["-m", "captioning.launch", "--nnodes", nodes, "--nproc_per_node", str(processes)]
    captioned = ["-m", "captioning.caption", "run", "photos", "--prefix", "a device=b --url c "]
    for command, program in ((["train.sh"], COCO), (["caption.sh", *captioned[2:]], captioned)):
        threads, given = scripts.launch(*command, **variables)
        assert given == [*launched, *meeting.split(), *program]
        assert int(threads) == max(1, len(os.sched_getaffinity(0)) // processes)
    assert scripts.launch("train.sh", OMP_NUM_THREADS="7", **variables)[0] == "7"


def test_several_machines_need_a_place_to_meet(scripts):
    done, calls = scripts.run("train.sh", NNODES="2")
    assert (done.returncode, calls) == (2, [])
    one_error_line(done.stderr, "error: NNODES=2 needs RDZV_ENDPOINT=host:port, the same on every")


def test_web_sh_exports_the_best_epoch_of_a_run_or_a_folder_of_transformers(scripts):
    for name in ("npm", "mkdir", "rm", "cp"):  # nothing is built
        (scripts.programs / name).symlink_to("/bin/true")
    model = scripts.caller / "model"
    model.mkdir()
    for exported in ("model/", "model/checkpoint_best.pth"):
        _, ((_, _, words),) = scripts.run("web.sh", "model/")  # ends, as nothing is exported
        assert words == ["-m", "BLIP.export", exported, "output/web/models.new/model/new"]
        (model / "checkpoint_best.pth").touch()


def test_benchmark_sh_runs_each_topic_also_after_one_that_failed(scripts):
    done, calls = scripts.run("benchmark.sh", "--quick", FAILING="training")
    assert done.returncode == 1
    assert [words for _, _, words in calls] == [["-m", "benchmarks", t, "--quick"] for t in TOPICS]


@pytest.mark.parametrize(
    ("arguments", "tests"),
    [([], "not slow and not soak"), (["--all"], "not soak"), (["--rest"], "slow and not soak")],
)
def test_tests_are_selected_by_markers_and_a_check_that_fails_is_named(scripts, arguments, tests):
    done, calls = scripts.run("test.sh", *arguments, FAILING="-m pytest")
    assert (done.returncode, done.stdout) == (1, "failed: pytest\n")
    lint = [] if arguments == ["--rest"] else ["ruff format --check", "ruff check"]
    parallel = "--numprocesses auto --maxprocesses 8 --dist loadfile"
    called = [" ".join(words[1:]) for _, _, words in calls]
    assert called == [*lint, f"pytest -m {tests} {parallel}"]
    assert {folder for folder, _, _ in calls} == {str(scripts.root)}


def test_paths_of_tests_and_environments_start_in_the_callers_folder(scripts):
    shutil.copytree(scripts.active, scripts.caller / "my venv")
    (scripts.caller / "my venv" / "pyvenv.cfg").touch()
    (scripts.caller / "smile").mkdir()
    done, _ = scripts.run("test.sh", "smile::a", "-k", "smile", "smile", VENV="my venv")
    assert done.returncode == 0, done.stderr
    call = (scripts.caller / "my venv/bin/python.calls").read_text()
    smile = str(scripts.caller / "smile")
    assert json.loads(call)[2] == ["-m", "pytest", f"{smile}::a", "-k", "smile", smile]


def test_scripts_have_no_carriage_returns_in_a_checkout_with_crlf(repository):
    files = ["scripts/train.sh", ".ci/run", "captioning/train.py"]
    command = ["git", "check-attr", "eol", "--", *files]
    said = subprocess.check_output(command, cwd=repository, text=True)
    assert [line.split()[-1] for line in said.splitlines()] == ["lf", "lf", "unspecified"]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_no_complaint_about_the_scripts(repository):
    scripts = [*sorted(repository.glob("scripts/*.sh")), repository / ".ci" / "run"]
    result = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
