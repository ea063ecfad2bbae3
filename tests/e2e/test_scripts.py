"""The commands that the scripts give to Python, seen by a stand-in for it."""

import os
import shutil
import subprocess

import pytest

INTERPRETER = """#!/bin/sh
case "$*" in
    "$FAILING") exit 1 ;;
esac
case "$1 $2" in
    *version_info*) echo 3.11 ;;
    *torch.cuda*) echo "$GPUS" ;; # at least 1
    *) pwd; echo "threads=$OMP_NUM_THREADS"; printf '%s\\n' "$@" ;;
esac
"""
VARIABLES = (
    "NPROC_PER_NODE",
    "NNODES",
    "RDZV_ENDPOINT",
    "RDZV_ID",
    "EVAL_SPLIT",
    "VENV",
    "PYTHON",
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
    (interpreter.parent / "uv").symlink_to("/bin/true")  # which says that nothing is missing

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
    tool = tmp_path / "driver" / "nvidia-smi"  # without which torch is not asked
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


def test_one_process_runs_without_torchrun(launch):
    assert launch("train.sh") == (
        "",
        ["-m", "captioning.train", "--config", "configs/caption_coco.yaml"],
    )


def test_first_yaml_is_the_config_and_the_rest_is_passed_on(launch):
    _, given = launch("train.sh", "my configs/a.yml", "prompt=a photo of ", "b.yaml", "--resume")
    assert given[2:] == ["--config", "my configs/a.yml", "prompt=a photo of ", "b.yaml", "--resume"]
    _, given = launch("train.sh", "train_file=x.yaml.gz", "batch_size=2")
    assert given[2:] == [
        "--config",
        "configs/caption_coco.yaml",
        "train_file=x.yaml.gz",
        "batch_size=2",
    ]


def test_eval_adds_the_split_before_the_users(launch):
    evaluate = ["-m", "captioning.train", "--config", "c.yaml", "--evaluate", "--eval_split"]
    assert launch("eval.sh", "c.yaml", "a=1")[1] == [*evaluate, "test", "a=1"]
    assert launch("eval.sh", "c.yaml", EVAL_SPLIT="val")[1] == [*evaluate, "val"]
    given = launch("eval.sh", "c.yaml", "--eval_split", "val")[1]
    assert given == [*evaluate, "test", "--eval_split", "val"]  # the last one counts


def test_caption_passes_everything_on(launch):
    arguments = ["my runs/a", "shards/{00..99}.tar", "--out", "a b.jsonl", "--num_return", "3"]
    for gpus in (1, 8):
        given = launch("caption.sh", *arguments, gpus=gpus)[1]
        assert given == ["-m", "captioning.caption", *arguments]


@pytest.mark.parametrize("name", ["NNODES", "NPROC_PER_NODE"])
def test_captions_are_divided_by_ray_alone(run_script, name):
    result = run_script("caption.sh", "a", "b", "--out", "c.jsonl", **{name: "2"})
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.splitlines() == [
        "error: NNODES and NPROC_PER_NODE are for training; to caption in more processes: "
        "--engine ray"
    ]


def test_a_setting_that_names_a_yaml_is_no_configuration(launch):
    given = launch("train.sh", "med_config=sizes.yaml")[1]
    assert given[-2:] == ["configs/caption_coco.yaml", "med_config=sizes.yaml"]


def test_one_process_a_gpu_on_a_port_that_is_found(launch):
    threads, given = launch("train.sh", "c.yaml", gpus=4)
    assert given == [
        *["-m", "captioning.launch", "--nnodes", "1", "--nproc_per_node", "4"],
        *["--standalone", "-m", "captioning.train", "--config", "c.yaml"],
    ]
    assert int(threads) == max(1, len(os.sched_getaffinity(0)) // 4)


def test_number_of_processes_can_be_set(launch):
    assert "captioning.launch" not in launch("train.sh", gpus=4, NPROC_PER_NODE="1")[1]
    for device in (["--device", "cpu"], ["device=cpu"]):
        assert "captioning.launch" not in launch("train.sh", *device, gpus=4)[1]
    _, given = launch("train.sh", NPROC_PER_NODE="3")
    assert given[given.index("--nproc_per_node") + 1] == "3"


def test_threads_are_the_users_where_set(launch):
    threads, _ = launch("train.sh", NPROC_PER_NODE="2", OMP_NUM_THREADS="7")
    assert threads == "7"


def test_several_machines_meet_at_the_endpoint(launch):
    _, given = launch("train.sh", "c.yaml", NNODES="2", RDZV_ENDPOINT="node0:29400")
    assert given == [
        *["-m", "captioning.launch", "--nnodes", "2", "--nproc_per_node", "1"],
        *["--rdzv_backend", "c10d", "--rdzv_endpoint", "node0:29400", "--rdzv_id", "smile"],
        *["-m", "captioning.train", "--config", "c.yaml"],
    ]


def test_several_machines_without_an_endpoint_are_refused(run_script):
    result = run_script("train.sh", NNODES="2", NPROC_PER_NODE="1")
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "error: NNODES=2 needs RDZV_ENDPOINT=host:port, the same on every machine"
    ]


@pytest.mark.parametrize(
    ("script", "module", "arguments"),
    [
        ("demo.sh", "captioning.demo", ["--quick", "prompt=a photo of "]),
        ("benchmark.sh", "benchmarks", ["objective", "--quick"]),
        ("app.sh", "app", ["my runs/smile", "--port", "8000"]),
    ],
)
def test_a_script_gives_its_arguments_to_the_program(run_script, script, module, arguments):
    result = run_script(script, *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[2:] == ["-m", module, *arguments]


TESTS = "-m pytest --numprocesses auto --maxprocesses 8 --dist loadfile"
CHECKS = {"-m ruff format --check": "ruff format", "-m ruff check": "ruff check", TESTS: "pytest"}


@pytest.mark.parametrize("failing", CHECKS)
def test_tests_fail_with_any_check_and_run_the_others(run_script, failing):
    result = run_script("test.sh", FAILING=failing)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "failed: " + CHECKS[failing]
    ran = " ".join(result.stdout.split())
    assert all((check in ran) == (check != failing) for check in CHECKS)


def test_tests_pass_where_all_checks_do(run_script):
    result = run_script("test.sh")
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == "passed: ruff format, ruff check, pytest"


def test_tests_with_arguments_are_pytest_alone(run_script):
    result = run_script("test.sh", "tests/smile", "-k", "some name")
    assert result.stdout.splitlines()[2:] == ["-m", "pytest", "tests/smile", "-k", "some name"]
    assert run_script("test.sh", "tests", FAILING="-m pytest tests").returncode == 1


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_no_complaint(repository):
    scripts = [*sorted(repository.glob("scripts/*.sh")), repository / ".ci" / "run"]
    result = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
