"""The commands that the scripts run, recorded by a stand-in for Python."""

import os
import shutil
import subprocess

import pytest

INTERPRETER = """#!/bin/sh
case "$*" in "$FAILING") exit 1 ;; esac
case "$1 $2" in
    *version_info*) echo 3.11 ;;
    *torch.cuda*) echo "$GPUS" ;; # at least 1
    *) pwd; echo "threads=$OMP_NUM_THREADS"; printf '%s\\n' "$@" ;;
esac
"""
UV = """#!/bin/sh
echo uv 1.0
echo "$@" >>"$0.log" # everything is installed
"""
VARIABLES = (
    *("NPROC_PER_NODE", "NNODES", "RDZV_ENDPOINT", "RDZV_ID", "EVAL_SPLIT", "VENV", "PYTHON"),
    "OMP_NUM_THREADS",
)


@pytest.fixture
def run_script(tmp_path, repository):
    """Return a function that runs a script of a copy in which the stand-in is Python."""
    root = tmp_path / "project"
    shutil.copytree(repository / "scripts", root / "scripts")
    interpreter = tmp_path / "active" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text(INTERPRETER)
    interpreter.chmod(0o755)
    (interpreter.parent / "uv").write_text(UV)
    (interpreter.parent / "uv").chmod(0o755)

    def run(script, *arguments, **variables):
        environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
        environment.update(VIRTUAL_ENV=str(tmp_path / "active"), **variables)
        environment["PATH"] = f"{interpreter.parent}{os.pathsep}{environment['PATH']}"
        command = ["bash", str(root / "scripts" / script), *arguments]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True
        )

    return run


@pytest.fixture
def launch(run_script, tmp_path):
    """Return a function that runs a script and returns threads and arguments of its Python."""
    tool = tmp_path / "driver" / "nvidia-smi"  # then train.sh asks torch for the number of GPUs
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)

    def call(script, *arguments, gpus=1, **variables):
        if gpus > 1:
            variables["PATH"] = f"{tool.parent}:{os.environ['PATH']}"
        result = run_script(script, *arguments, GPUS=str(gpus), **variables)
        assert result.returncode == 0, result.stderr
        folder, threads, *given = result.stdout.splitlines()
        assert folder == str(tmp_path / "project")
        return threads.replace("threads=", ""), given

    return call


TRAIN = ["-m", "captioning.train", "--config"]
COCO = [*TRAIN, "configs/caption_coco.yaml"]
EVALUATE = [*TRAIN, "c.yaml", "--evaluate", "--eval_split"]
BULK = ["my runs/a", "shards/{00..99}.tar", "--out", "a b.jsonl", "--num_return", "3"]
ODD = ["prompt=a photo of ", "b.yaml", "--resume"]


@pytest.mark.parametrize(
    ("command", "variables", "given"),
    [
        # A first YAML is the configuration, and the rest is passed on.
        (["train.sh"], {}, COCO),
        (["train.sh", "my configs/a.yml", *ODD], {}, [*TRAIN, "my configs/a.yml", *ODD]),
        (["train.sh", "train_file=x.yaml.gz", "a=2"], {}, [*COCO, "train_file=x.yaml.gz", "a=2"]),
        (["train.sh", "med_config=sizes.yaml"], {}, [*COCO, "med_config=sizes.yaml"]),
        # The user's split comes after the default one, and the last one counts.
        (["eval.sh", "c.yaml", "a=1"], {}, [*EVALUATE, "test", "a=1"]),
        (["eval.sh", "c.yaml"], {"EVAL_SPLIT": "val"}, [*EVALUATE, "val"]),
        (["caption.sh", *BULK], {"gpus": 8}, ["-m", "captioning.caption", *BULK]),
        (["demo.sh", "--quick", *ODD], {}, ["-m", "captioning.demo", "--quick", *ODD]),
        (["benchmark.sh", "objective"], {}, ["-m", "benchmarks", "objective"]),
        (["app.sh", "my run", "--port", "8"], {}, ["-m", "app", "my run", "--port", "8"]),
        # One process, without torchrun, where a number or a device is given.
        (["train.sh"], {"gpus": 4, "NPROC_PER_NODE": "1"}, COCO),
        (["train.sh", "--device", "cpu"], {"gpus": 4}, [*COCO, "--device", "cpu"]),
        (["train.sh", "device=cpu"], {"gpus": 4}, [*COCO, "device=cpu"]),
    ],
)
def test_the_command_that_a_script_runs(launch, command, variables, given):
    threads, found = launch(*command, **variables)
    assert (threads, found) == ("", given)


@pytest.mark.parametrize(
    ("flags", "requirements"),
    [
        (["--engine", "ray"], "requirements-cluster.txt"),
        (["--engine=ray", "--sidecar"], "requirements-cluster.txt"),
        (["--engine", "local"], "requirements.txt"),
        (["--glob", "--engine rayon"], "requirements.txt"),
    ],
)
def test_captions_by_ray_have_ray_set_up(launch, tmp_path, flags, requirements):
    assert launch("caption.sh", *BULK, *flags) == ("", ["-m", "captioning.caption", *BULK, *flags])
    log = (tmp_path / "active" / "bin" / "uv.log").read_text().split()
    assert log[-1] == requirements


@pytest.mark.parametrize(
    ("command", "variables", "line"),
    [
        ("caption.sh", {"NNODES": "2"}, "NNODES and NPROC_PER_NODE are for training; to caption"),
        ("caption.sh", {"NPROC_PER_NODE": "2"}, "NNODES and NPROC_PER_NODE are for training; to c"),
        ("train.sh", {"NNODES": "2"}, "NNODES=2 needs RDZV_ENDPOINT=host:port, the same on every"),
    ],
)
def test_variables_that_are_refused(run_script, command, variables, line):
    result = run_script(command, "a", **variables)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"error: {line}")


@pytest.mark.parametrize(
    ("variables", "processes"),
    [({"gpus": 4}, 4), ({"NPROC_PER_NODE": "3"}, 3), ({"NPROC_PER_NODE": "2", "gpus": 8}, 2)],
)
def test_several_processes_share_the_cores(launch, variables, processes):
    threads, given = launch("train.sh", "c.yaml", **variables)
    assert given == [
        *["-m", "captioning.launch", "--nnodes", "1", "--nproc_per_node", str(processes)],
        *["--standalone", *TRAIN, "c.yaml"],
    ]
    assert int(threads) == max(1, len(os.sched_getaffinity(0)) // processes)
    assert launch("train.sh", OMP_NUM_THREADS="7", **variables)[0] == "7"


def test_several_machines_meet_at_the_endpoint(launch):
    _, given = launch("train.sh", "c.yaml", NNODES="2", RDZV_ENDPOINT="node0:29400")
    assert given == [
        *["-m", "captioning.launch", "--nnodes", "2", "--nproc_per_node", "1"],
        *["--rdzv_backend", "c10d", "--rdzv_endpoint", "node0:29400", "--rdzv_id", "smile"],
        *[*TRAIN, "c.yaml"],
    ]


@pytest.mark.parametrize("failing", ["", "-m ruff check"])
def test_tests_fail_with_any_check_and_run_the_others(run_script, failing):
    result = run_script("test.sh", FAILING=failing)
    last = "failed: ruff check" if failing else "passed: ruff format, ruff check, pytest"
    assert (result.returncode, result.stdout.splitlines()[-1]) == (int(failing != ""), last)
    ran = [line for line in result.stdout.splitlines() if line in ("ruff", "pytest")]
    assert ran == (["ruff", "pytest"] if failing else ["ruff", "ruff", "pytest"])


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_no_complaint(repository):
    scripts = [*sorted(repository.glob("scripts/*.sh")), repository / ".ci" / "run"]
    result = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
