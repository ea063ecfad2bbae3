"""The commands that the scripts run, recorded by a stand-in for Python."""

import os
import shutil
import subprocess
from typing import NamedTuple

import pytest
from _pytest.mark.expression import Expression

from tests.programs import one_error_line

# Records its folder, two variables and its arguments, and fails where FAILING matches these.
INTERPRETER = """#!/bin/sh
case "$1 $2" in
    *version_info*) echo 3.11 ;;
    *torch.cuda*) echo "$GPUS" ;; # at least 1
    *) printf '%s\\n' "$PWD" "threads=$OMP_NUM_THREADS" "no_bytecode=$PYTHONDONTWRITEBYTECODE" \\
        "$@" "" >>"$0.calls" ;;
esac
case "$*" in $FAILING) exit 1 ;; esac
"""
UV = """#!/bin/sh
echo uv 1.0
echo "$@" >>"$0.log" # everything is installed
"""
VARIABLES = (
    *("NPROC_PER_NODE", "NNODES", "RDZV_ENDPOINT", "RDZV_ID", "EVAL_SPLIT", "VENV", "PYTHON"),
    *("OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"),
)


class Call(NamedTuple):
    """A call of Python: its folder, two variables and its arguments."""

    folder: str
    threads: str
    no_bytecode: str
    words: list[str]


class Ended(NamedTuple):
    """A script's exit code, stdout and stderr, and the calls of Python that it made."""

    code: int
    out: str
    err: str
    calls: list[Call]


@pytest.fixture
def run_script(tmp_path, repository):
    """Return a function that runs a script of a copy in which the stand-in is Python.

    gpus: how many torch counts. With several, train.sh finds a driver and asks torch.
    """
    root, programs = tmp_path / "project", tmp_path / "active" / "bin"
    shutil.copytree(repository / "scripts", root / "scripts")
    driver, calls = tmp_path / "driver" / "nvidia-smi", programs / "python.calls"
    files = {programs / "python": INTERPRETER, programs / "uv": UV, driver: "#!/bin/sh\n"}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(script, *arguments, gpus=1, **variables):
        folders = [programs, *([driver.parent] if gpus > 1 else []), os.environ["PATH"]]
        environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
        environment.update(VIRTUAL_ENV=str(tmp_path / "active"), GPUS=str(gpus), **variables)
        environment["PATH"] = os.pathsep.join(map(str, folders))
        command = ["bash", str(root / "scripts" / script), *arguments]
        calls.unlink(missing_ok=True)
        pipes = {"capture_output": True, "text": True}
        done = subprocess.run(command, env=environment, cwd=tmp_path, **pipes)
        recorded = calls.read_text().split("\n\n")[:-1] if calls.exists() else []
        return Ended(done.returncode, done.stdout, done.stderr, [*map(as_call, recorded)])

    return run


def as_call(text):
    folder, *variables = text.split("\n")
    threads, no_bytecode = (variable.partition("=")[2] for variable in variables[:2])
    return Call(folder, threads, no_bytecode, variables[2:])


@pytest.fixture
def launch(run_script, tmp_path):
    """Return a function that runs a script and returns threads and arguments of its Python."""

    def call(script, *arguments, **settings):
        ended = run_script(script, *arguments, **settings)
        assert ended.code == 0, ended.err
        (called,) = ended.calls
        assert called.folder == str(tmp_path / "project")
        return called.threads, called.words

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
def test_a_script_runs_its_program_with_the_arguments_as_they_are(
    launch, command, variables, given
):
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
def test_ray_is_installed_only_for_captions_by_ray(launch, tmp_path, flags, requirements):
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
def test_variables_of_several_machines_are_refused_in_one_line_where_they_cannot_work(
    run_script, command, variables, line
):
    ended = run_script(command, "a", **variables)
    assert (ended.code, ended.out, ended.calls) == (2, "", [])
    assert one_error_line(ended.err, f"error: {line}") == ended.err.strip()


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


LINT = [["-m", "ruff", "format", "--check"], ["-m", "ruff", "check"]]
MARKERS = [(), ("slow",), ("soak",), ("slow", "soak")]


@pytest.mark.parametrize(
    ("arguments", "lint", "selected"),
    [([], LINT, [()]), (["--all"], LINT, [(), ("slow",)]), (["--rest"], [], [("slow",)])],
    ids=["quick", "all", "rest"],
)
def test_tests_are_selected_by_markers_after_linting_which_rest_leaves_out(
    run_script, arguments, lint, selected
):
    ended = run_script("test.sh", *arguments, PYTHONDONTWRITEBYTECODE="1")
    assert (ended.code, ended.out) == (0, "passed\n")
    assert {call.no_bytecode for call in ended.calls} == {""}  # compiled once for all processes
    *before, (module, program, option, expression, *workers) = (call.words for call in ended.calls)
    assert before == lint and (module, program, option) == ("-m", "pytest", "-m")
    assert workers == ["--numprocesses", "auto", "--maxprocesses", "8", "--dist", "loadfile"]
    matches = Expression.compile(expression).evaluate
    assert [given for given in MARKERS if matches(given.__contains__)] == selected


@pytest.mark.parametrize("arguments", [["tests/smile", "-k", "a name"], ["--collect-only"]])
def test_other_arguments_of_the_tests_are_pytests(run_script, arguments):
    assert run_script("test.sh", *arguments).calls[0].words == ["-m", "pytest", *arguments]
    failed = run_script("test.sh", *arguments, FAILING="-m pytest*")
    assert (failed.code, len(failed.calls)) == (1, 1)


@pytest.mark.parametrize(
    ("failing", "name"),
    [("*format*", "ruff format"), ("-m ruff check", "ruff check"), ("-m pytest*", "pytest")],
)
def test_a_check_that_fails_is_named_and_the_others_still_run(run_script, failing, name):
    ended = run_script("test.sh", FAILING=failing)
    assert (ended.code, ended.out) == (1, f"failed: {name}\n")
    *lint, tests = (call.words for call in ended.calls)
    assert lint == LINT and tests[:2] == ["-m", "pytest"]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_no_complaint_about_the_scripts(repository):
    scripts = [*sorted(repository.glob("scripts/*.sh")), repository / ".ci" / "run"]
    result = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
