"""scripts/setup.sh, tried in copies of the scripts that ask for a package of a few bytes."""

import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from tests.e2e.setup_project import Project, assert_refused, fill, write_disk, write_program

needs_flock = pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")


@pytest.fixture
def bare(tmp_path, repository):
    """A project in which nothing was set up yet."""
    return fill(tmp_path / "project", repository)


@pytest.fixture(scope="module")
def first_call(tmp_path_factory, repository):
    """A project that was set up once, and how that call ended. Not to be changed."""
    project = fill(tmp_path_factory.mktemp("first") / "project", repository)
    return project, project.set_up()


@pytest.fixture
def installed(tmp_path, first_call):
    """A project of the test's own that was set up before."""
    shutil.copytree(first_call[0].root, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project")


def test_makes_an_environment_and_prints_its_interpreter(first_call):
    project, result = first_call
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{project.interpreter}\n"
    assert "installing" in result.stderr
    assert project.has("tiny_package") and not project.has("tiny_tool")


def test_second_call_installs_nothing(installed):
    installed.log.unlink()
    result = installed.set_up()
    assert (result.stdout, result.stderr) == (f"{installed.interpreter}\n", "")
    assert not installed.log.exists()


@pytest.mark.parametrize("more", ["dev", "app"])
def test_what_only_some_need_is_added_to_the_same_environment(installed, more):
    (installed.venv / "kept").touch()
    result = installed.set_up(more)
    assert result.returncode == 0, result.stderr
    assert installed.has("tiny_package") and installed.has("tiny_tool")
    assert (installed.venv / "kept").exists()


def test_unknown_argument_is_refused(installed):
    assert_refused(installed.set_up("develop"), "develop")


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_active_environment_that_satisfies_is_used(bare, first_call, variable):
    active, _ = first_call
    result = bare.set_up(**{variable: active.venv})
    assert (result.stdout, result.stderr) == (f"{active.interpreter}\n", "")
    assert not bare.venv.exists()


def test_active_environment_that_does_not_satisfy_is_named_and_left(installed, tmp_path):
    write_program(tmp_path / "active" / "bin" / "python", f'exec "{sys.executable}" "$@"')
    result = installed.set_up(VIRTUAL_ENV=tmp_path / "active")
    assert result.stdout == f"{installed.interpreter}\n"
    assert len(result.stderr.splitlines()) == 1
    assert f"{tmp_path / 'active'} lacks tiny-package==1.0" in result.stderr


def test_active_environment_of_an_old_python_is_left(installed, tmp_path):
    write_program(tmp_path / "active" / "bin" / "python", "echo 2.7")
    result = installed.set_up(CONDA_PREFIX=tmp_path / "active")
    assert result.stdout == f"{installed.interpreter}\n"
    assert "lacks Python 3.9 or later" in result.stderr


def test_venv_passes_over_the_active_environment(installed, first_call):
    installed.venv.rename(installed.root / "other")
    result = installed.set_up(VENV="other", VIRTUAL_ENV=first_call[0].venv)
    assert result.stdout == f"{installed.root / 'other' / 'bin' / 'python'}\n"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (None, ["not found"]),
        ("exit 127", ["does not run"]),
        ("echo 2.7", ["Python 2.7", "3.9 or later"]),
        ("echo 3.8", ["Python 3.8", "3.9 or later"]),
        ('case "$*" in *version_info*) echo 3.11;; *) exit 1;; esac', ["python3.11-venv"]),
    ],
    ids=["absent", "broken", "python2", "too-old", "no-venv-module"],
)
def test_unusable_python_is_refused(bare, program, words):
    python = bare.root / "bin" / "my-python"
    if program is not None:
        write_program(python, program)
    assert_refused(bare.set_up(PYTHON=python), python, *words)
    assert not bare.venv.exists()


def test_the_page_refuses_python_39_before_anything_is_installed(bare):
    python = write_program(
        bare.root / "bin" / "my-python",
        'case "$*" in *version_info*) echo 3.9;; *) exit 0;; esac',
    )
    result = bare.set_up("app", PYTHON=python)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: the web page needs Python 3.10 or later")
    assert "PYTHON=python3.11" in line
    assert not bare.venv.exists()


def test_python_of_another_version_than_the_environment_is_refused(installed):
    python = write_program(
        installed.root / "bin" / "my-python",
        'case "$*" in *version_info*) echo 3.99;; *) exit 0;; esac',
    )
    assert_refused(installed.set_up(PYTHON=python), "holds Python", "VENV")
    assert installed.has("tiny_package")


def test_full_disk_is_refused(bare):
    write_disk(bare.root, free_gigabytes=1)
    assert_refused(bare.set_up(), "1 GB", "VENV")


def test_folder_that_is_no_environment_is_refused(bare):
    (bare.root / "work").mkdir()
    (bare.root / "work" / "thesis.txt").write_text("two years")
    assert_refused(bare.set_up(VENV="work"), "no virtual environment")
    assert (bare.root / "work" / "thesis.txt").read_text() == "two years"


def test_unreachable_index_is_one_line_and_keeps_the_environment(installed):
    installed.require("tiny-package==1.0", "another-package")
    index = {"PIP_NO_INDEX": "", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    result = installed.set_up(**index)
    assert_refused(result, "cannot reach the package index", installed.log)
    assert len(result.stderr.splitlines()) == 2  # what it was doing, and the error
    assert installed.log.exists()
    installed.require("tiny-package==1.0")
    assert installed.set_up().stderr == ""


def test_other_failure_shows_the_end_of_the_log(installed):
    installed.require("another-package==7")
    result = installed.set_up()
    assert_refused(result, installed.log)
    assert "No matching distribution found for another-package==7" in result.stderr


def test_interrupted_installation_is_repaired(installed):
    """Half of a package is there, and pip would take it for whole."""
    installed.require("tiny-package==1.0", "another-package")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        process = installed.start(PIP_NO_INDEX="", PIP_INDEX_URL=index)
        silent.settimeout(60)
        connection, _ = silent.accept()  # pip is at work
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        connection.close()
    next(installed.venv.glob("lib/python*/site-packages/tiny_package.py")).unlink()

    installed.require("tiny-package==1.0")
    result = installed.set_up()
    assert result.returncode == 0, result.stderr
    assert "did not finish" in result.stderr
    assert installed.has("tiny_package")
    assert installed.set_up().stderr == ""


@needs_flock
def test_two_calls_at_once_install_once(bare):
    processes = [bare.start(), bare.start()]
    results = [process.communicate() for process in processes]
    assert [output for output, _ in results] == [f"{bare.interpreter}\n"] * 2
    assert sum("installing" in errors for _, errors in results) == 1


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("pytest>=1,<999", ""),
        ("Pytest", ""),
        ("ruamel.yaml", ""),
        ("# only a comment\n\npytest  # and one behind it", ""),
        ("pytest>=999", "pytest>=999"),
        ("surely-absent==1.0\npytest<0", "surely-absent==1.0, pytest<0"),
        ('surely-absent; python_version < "3"', ""),
        ('surely-absent; python_version >= "3"', "surely-absent"),
    ],
)
def test_check_requirements(repository, tmp_path, line, missing):
    (tmp_path / "inner.txt").write_text(line + "\n")
    (tmp_path / "outer.txt").write_text("-r inner.txt\n")
    program = [sys.executable, repository / "scripts" / "check_requirements.py"]
    result = subprocess.run([*program, tmp_path / "outer.txt"], capture_output=True, text=True)
    assert result.stdout.strip() == missing
    assert result.returncode == bool(missing)
