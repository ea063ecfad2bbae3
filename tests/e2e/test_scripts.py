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
VARIABLES = (
    *("NPROC_PER_NODE", "NNODES", "RDZV_ENDPOINT", "RDZV_ID", "EVAL_SPLIT", "VENV", "PYTHON"),
    *("OMP_NUM_THREADS", "PYTHONPATH"),
)


class Scripts:
    """A copy of the scripts whose Python is the stand-in, called from the folder `caller`."""

    def __init__(self, repository, folder):
        self.root, self.caller, self.active = (folder / n for n in ("project", "caller", "active"))
        shutil.copytree(repository / "scripts", self.root / "scripts")
        self.caller.mkdir()
        self.calls = self.active / "bin/python.calls"
        for path, text in {"bin/python": PYTHON, "bin/uv": UV, "gpu/nvidia-smi": ""}.items():
            (self.active / path).parent.mkdir(parents=True, exist_ok=True)
            (self.active / path).write_text(text)
            (self.active / path).chmod(0o755)

    def run(self, script, *arguments, gpus=1, **variables):
        """Return the finished script, and folder, variables and arguments of its calls of Python.

        gpus: how many torch counts. With several, train.sh finds a driver and asks torch.
        """
        environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
        folders = ["bin", *(["gpu"] if gpus > 1 else [])]
        path = os.pathsep.join([*(str(self.active / f) for f in folders), os.environ["PATH"]])
        environment.update(PATH=path, VIRTUAL_ENV=str(self.active), GPUS=str(gpus), **variables)
        command = ["bash", self.root / "scripts" / script, *arguments]
        options = {"cwd": self.caller, "capture_output": True, "text": True}
        self.calls.unlink(missing_ok=True)
        done = subprocess.run(command, env=environment, **options)
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return done, [json.loads(line) for line in lines]

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
BULK = ["my runs/a", "shards/{00..99}.tar", "--out", "a b.jsonl", "--glob", "--engine ray a"]
ODD = ["prompt=a photo of ", "b.yaml", "--resume"]


@pytest.mark.parametrize(
    ("command", "variables", "given"),
    [
        # A first YAML is the configuration, and the rest is passed on.
        (["train.sh", "my configs/a.yml", *ODD], {}, [*TRAIN, "my configs/a.yml", *ODD]),
        (["train.sh", "train_file=x.yaml.gz", "a=2"], {}, [*COCO, "train_file=x.yaml.gz", "a=2"]),
        (["train.sh", "med_config=sizes.yaml"], {}, [*COCO, "med_config=sizes.yaml"]),
        # The user's split comes after the default one, and the last one counts.
        (["eval.sh", "a=1"], {}, [*COCO, "--evaluate", "--eval_split", "test", "a=1"]),
        (["eval.sh"], {"EVAL_SPLIT": "val"}, [*COCO, "--evaluate", "--eval_split", "val"]),
        (["caption.sh", "--url", "a"], {"gpus": 8}, ["-m", "captioning.caption", "--url", "a"]),
        (["demo.sh", "--quick", *ODD], {}, ["-m", "captioning.demo", "--quick", *ODD]),
        (["app.sh", "my run", "--port", "8"], {}, ["-m", "app", "my run", "--port", "8"]),
        # One process, without torchrun, where a number or a device is given.
        (["train.sh"], {"gpus": 4, "NPROC_PER_NODE": "1"}, COCO),
        (["train.sh", "--device", "cpu"], {"gpus": 4}, [*COCO, "--device", "cpu"]),
        (["train.sh", "device=cpu"], {"gpus": 4}, [*COCO, "device=cpu"]),
    ],
)
def test_a_script_runs_its_program_in_the_callers_folder(scripts, command, variables, given):
    assert scripts.launch(*command, **variables) == (None, given)


def test_benchmark_sh_runs_each_topic_also_after_one_that_failed(scripts):
    done, calls = scripts.run("benchmark.sh", "training", "loader", "--quick", FAILING="training")
    assert done.returncode == 1
    runs = [["-m", "benchmarks", topic, "--quick"] for topic in ("training", "loader")]
    assert [words for _, _, words in calls] == runs
    done, calls = scripts.run("benchmark.sh")
    assert done.returncode == 0 and [words[2] for _, _, words in calls] == list(TOPICS)


def test_a_configuration_that_the_caller_lacks_is_the_projects(scripts):
    own = scripts.root / "configs" / "own.yaml"
    own.parent.mkdir()
    own.touch()
    assert scripts.launch("train.sh", "configs/own.yaml")[1] == [*TRAIN, str(own)]
    shutil.copytree(own.parent, scripts.caller / "configs")
    assert scripts.launch("train.sh", "configs/own.yaml")[1] == [*TRAIN, "configs/own.yaml"]
    (scripts.caller / "lr=1.yaml").touch()
    for script in ("train.sh", "eval.sh"):
        assert scripts.launch(script, "lr=1.yaml")[1][:4] == [*TRAIN, "lr=1.yaml"]


@pytest.mark.parametrize(
    ("file", "exported"),
    [("config.json", "model/"), ("checkpoint_best.pth", "model/checkpoint_best.pth")],
)
def test_web_sh_exports_a_folder_of_transformers_or_the_best_epoch_of_a_run(
    scripts, file, exported
):
    js = "web/node_modules/@huggingface/transformers/dist/transformers.min.js"
    wasm = "web/node_modules/onnxruntime-web/dist/ort-wasm-simd-threaded.asyncify"
    files = [scripts.root / name for name in ("web/page/a", js, f"{wasm}.mjs", f"{wasm}.wasm")]
    for path in (*files, scripts.caller / "model" / file):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (scripts.active / "bin/npm").symlink_to("/bin/true")
    _, ((_, _, words),) = scripts.run("web.sh", "model/")  # ends, as the stand-in exports no file
    assert words == ["-m", "BLIP.export", exported, "output/web/models.new/model/new"]


@pytest.mark.parametrize("script", ["train.sh", "test.sh", "soak.sh"])
def test_an_environment_is_looked_for_in_the_callers_folder(scripts, script):
    shutil.copytree(scripts.active, scripts.caller / "my venv")
    (scripts.caller / "my venv" / "pyvenv.cfg").touch()
    done, _ = scripts.run(script, VENV="my venv")
    assert done.returncode == 0, done.stderr
    assert (scripts.caller / "my venv/bin/python.calls").exists()


@pytest.mark.parametrize("flags", [[], ["--engine", "ray"], ["--engine=ray", "--sidecar"]], ids=str)
def test_ray_is_installed_only_for_captions_by_ray(scripts, flags):
    given = ["-m", "captioning.caption", *BULK, *flags]
    assert scripts.launch("caption.sh", *BULK, *flags) == (None, given)
    log = (scripts.active / "bin/uv.log").read_text()
    assert f"-r {scripts.root}/requirements.txt" in log and ("--extra cluster" in log) == bool(
        flags
    )


@pytest.mark.parametrize(
    ("variables", "nodes", "processes", "meeting"),
    [
        ({"gpus": 4}, "1", 4, ["--standalone"]),
        ({"gpus": 8, "NPROC_PER_NODE": "2"}, "1", 2, ["--standalone"]),
        (
            {"NNODES": "2", "RDZV_ENDPOINT": "a:29400"},
            *("2", 1),
            ["--rdzv_backend", "c10d", "--rdzv_endpoint", "a:29400", "--rdzv_id", "smile"],
        ),
    ],
)
def test_processes_meet_and_share_the_cores(scripts, variables, nodes, processes, meeting):
    launched = ["-m", "captioning.launch", "--nnodes", nodes, "--nproc_per_node", str(processes)]
    captioned = ["-m", "captioning.caption", "run", "photos", "--prefix", "a device=b --url c "]
    for command, program in ((["train.sh"], COCO), (["caption.sh", *captioned[2:]], captioned)):
        threads, given = scripts.launch(*command, **variables)
        assert given == [*launched, *meeting, *program]
        assert int(threads) == max(1, len(os.sched_getaffinity(0)) // processes)
    assert scripts.launch("train.sh", OMP_NUM_THREADS="7", **variables)[0] == "7"
    if "RDZV_ENDPOINT" in variables:  # several machines need a place to meet
        done, calls = scripts.run("train.sh", NNODES="2")
        assert (done.returncode, done.stdout, calls) == (2, "", [])
        line = "error: NNODES=2 needs RDZV_ENDPOINT=host:port, the same on every"
        assert one_error_line(done.stderr, line) == done.stderr.strip()


@pytest.mark.parametrize(
    ("arguments", "lint", "tests"),
    [
        ([], ["ruff format --check", "ruff check"], "not slow and not soak"),
        (["--all"], ["ruff format --check", "ruff check"], "not soak"),
        (["--rest"], [], "slow and not soak"),
    ],
)
def test_tests_are_selected_by_markers_and_each_check_that_fails_is_named(
    scripts, arguments, lint, tests
):
    done, calls = scripts.run("test.sh", *arguments, PYTHONDONTWRITEBYTECODE="1")
    assert (done.returncode, done.stdout) == (0, "passed\n")
    parallel = "--numprocesses auto --maxprocesses 8 --dist loadfile"
    expected = [*lint, f"pytest -m {tests} {parallel}"]
    assert [" ".join(words[1:]) for _, _, words in calls] == expected
    for folder, variables, _ in calls:
        assert folder == str(scripts.root) and "PYTHONDONTWRITEBYTECODE" not in variables
    for check in [*lint, "pytest"]:
        done, others = scripts.run("test.sh", *arguments, FAILING=f"-m {check}")
        name = check.replace(" --check", "")
        assert (done.returncode, done.stdout) == (1, f"failed: {name}\n")
        assert len(others) == len(calls)


def test_other_arguments_of_the_tests_are_pytests_and_paths_the_callers(scripts):
    (scripts.caller / "smile").mkdir()
    absolute = str(scripts.caller / "smile")
    given = ["smile::a", "-k", "smile", "--lf", "smile", "x"]
    failed, [(_, _, words)] = scripts.run("test.sh", *given, FAILING="-m pytest")
    assert words == ["-m", "pytest", f"{absolute}::a", "-k", "smile", "--lf", absolute, "x"]
    assert failed.returncode == 1


def test_scripts_have_no_carriage_returns_in_a_checkout_with_crlf(repository, tmp_path):
    shutil.copy(repository / ".gitattributes", tmp_path)
    names = ("a.sh", ".ci/run", "a.py")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"one\ntwo\n")
    commit = ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qma"]
    clone = ["-c", "core.autocrlf=true", "clone", "-q", tmp_path, tmp_path / "clone"]
    for words in (["init", "-q"], ["add", "."], commit, clone):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    found = [b"\r" in (tmp_path / "clone" / name).read_bytes() for name in names]
    assert found == [False, False, True]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_no_complaint_about_the_scripts(repository):
    scripts = [*sorted(repository.glob("scripts/*.sh")), repository / ".ci" / "run"]
    result = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
