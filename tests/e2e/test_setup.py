"""scripts/setup.sh, in copies of the scripts that require a package of a few bytes; no network.

Environments with pip take seconds to make: their tests run with `bash scripts/soak.sh` only.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile

import pytest
import uv

NOWHERE = "http://127.0.0.1:9/simple"
AS_OTHER_VERSION = 'case "$*" in *version_info*) echo {};; *) exit {};; esac'


class Project:
    """A folder with the scripts, its own requirements, and programs that are first on PATH."""

    def __init__(self, root, pip=True):
        """pip: whether environments have it, and the folders of wheels are pip's settings."""
        self.root, self.venv, self.pip = root, root / ".venv", pip
        self.interpreter, self.log = self.venv / "bin" / "python", self.venv / "setup.log"

    def write(self, name, *lines):
        (self.root / f"{name}.txt").write_text("\n".join(lines) + "\n")

    def start(self, *arguments, **variables):
        settings = {"UV_OFFLINE": "1", "UV_FIND_LINKS": str(self.root / "wheels")}
        if self.pip:
            folders = f"{self.root / 'bin'} {self.root / 'wheels'}"
            settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": folders}
        environment = {
            "PATH": f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.root),
            "PIP_CONFIG_FILE": os.devnull,
            **settings,
            "UV_CACHE_DIR": str(self.root / "cache"),
            "UV_HTTP_RETRIES": "0",
            **{name: str(value) for name, value in variables.items()},
        }
        return subprocess.Popen(
            ["bash", str(self.root / "scripts" / "setup.sh"), *arguments],
            env={name: value for name, value in environment.items() if value != ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def set_up(self, *arguments, **variables):
        process = self.start(*arguments, **variables)
        output, errors = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def versions(self):
        found = self.venv.glob("lib/python*/site-packages/tiny_*.dist-info")
        return dict(path.stem.split("-") for path in found)


def write_wheel(folder, name, version, files=None):
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        **(files or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = 0o100755 << 16  # an executable file
            wheel.writestr(entry, text)


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fill(root, repository, venv=None, pip=True):
    """Make a project that requires tiny-package 1.0, of two versions in a folder of wheels.

    venv: an environment that Python copies instead of making one, which takes seconds. pip: whether
    environments that it makes have pip.
    """
    shutil.copytree(repository / "scripts", root / "scripts")
    (root / "wheels").mkdir()
    for name, version in (("package", "1.0"), ("package", "1.1"), ("tool", "1.0")):
        write_wheel(root / "wheels", f"tiny_{name}", version)
    copy = f'cp -r "{venv}/." "$3"; rm -r "$3"/lib/python*/site-packages/tiny_*; exit'
    if not pip:
        copy = f'exec "{sys.executable}" -m venv --without-pip "$3"'
    made = f'case "$1 $2" in "-m venv") {copy};; esac\n' if venv or not pip else ""
    write_program(root / "bin" / "python3", f'{made}exec "{sys.executable}" "$@"')
    write_program(root / "bin" / "uv", f'exec "{uv.find_uv_bin()}" "$@"')
    project = Project(root, pip)
    for more in ("app", "cluster", "dev"):
        project.write(f"requirements-{more}", "-r requirements.txt", "tiny-tool==1.0")
    project.write("requirements", "tiny-package>=1.0", 'absent; python_version < "3"')
    project.write(
        "requirements-lock",
        'tiny-package==1.0 ; python_full_version >= "3"',
        'tiny-package==1.1 ; python_full_version < "3"',
        "package-of-another-platform==3.0",
    )
    return project


def assert_refused(result, *words, code=1):
    assert (result.returncode, result.stdout) == (code, "")
    *before, last = result.stderr.splitlines()  # an installer's own errors are indented
    assert not any(line.startswith("error: ") for line in before)
    assert last.startswith("error: ") and all(str(word) in last for word in words)


@pytest.fixture(scope="module")
def first_call(tmp_path_factory, repository):
    """A project that was set up once, and the result of that call. Not to be changed."""
    project = fill(tmp_path_factory.mktemp("first") / "project", repository, pip=False)
    return project, project.set_up()


@pytest.fixture
def project(tmp_path, repository):
    """A project in which nothing has been set up."""
    return fill(tmp_path / "project", repository, pip=False)


@pytest.fixture
def copied(tmp_path, first_call):
    """A copy of the project that was set up, for the test to change."""
    shutil.copytree(first_call[0].root, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project", pip=False)


def test_makes_an_environment_of_the_locked_versions_and_prints_its_interpreter(first_call):
    project, result = first_call
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{project.interpreter}\n"
    assert "the versions of requirements-lock.txt" in result.stderr
    assert project.versions() == {"tiny_package": "1.0"}


def test_second_call_installs_nothing(copied):
    copied.log.unlink()
    copied.write("requirements-lock", "tiny-package==1.1")  # what satisfies is left unchanged
    result = copied.set_up()
    assert (result.stdout, result.stderr) == (f"{copied.interpreter}\n", "")
    assert not copied.log.exists() and copied.versions() == {"tiny_package": "1.0"}


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_active_environment_that_satisfies_is_used_and_none_is_made(first_call, project, variable):
    active = first_call[0].venv
    result = project.set_up(**{variable: active})
    assert (result.stdout, result.stderr) == (f"{active}/bin/python\n", "")
    assert not project.venv.exists()


@pytest.mark.parametrize(
    ("program", "what", "code", "words"),
    [
        ("exit 127", "", 1, ["is not found or does not run"]),
        ("echo 3.8", "", 1, ["is Python 3.8", "3.9 or later"]),
        (AS_OTHER_VERSION.format("3.11", 1), "", 1, ["python3.11-venv"]),
        (AS_OTHER_VERSION.format("3.9", 0), "app", 2, ["3.10 or later", "PYTHON=python3.11"]),
        ("exit", "develop", 1, ["develop"]),
    ],
    ids=["broken", "too-old", "no-venv-module", "the-page", "no-such-argument"],
)
def test_what_is_unusable_is_refused_before_anything_is_installed(
    project, program, what, code, words
):
    python = write_program(project.root / "bin" / "my-python", program)
    assert_refused(project.set_up(*filter(None, [what]), PYTHON=python), *words, code=code)
    assert not project.venv.exists()


@pytest.mark.parametrize("more", ["app", "cluster", "dev"])
def test_more_requirements_are_added_to_the_same_environment(copied, more):
    (copied.venv / "kept").touch()
    assert copied.set_up(more).returncode == 0
    assert copied.versions() == {"tiny_package": "1.0", "tiny_tool": "1.0"}
    assert (copied.venv / "kept").exists()


def test_latest_takes_what_the_requirements_allow(project):
    project.write("requirements-lock", "tiny-package==1.0.5")  # which is no longer there
    assert_refused(project.set_up(), project.log, "LATEST=1")
    result = project.set_up(LATEST="1")
    assert "the newest versions" in result.stderr and project.versions() == {"tiny_package": "1.1"}


def test_folder_that_is_no_environment_is_refused(project):
    (project.root / "work").mkdir()
    (project.root / "work" / "thesis.txt").write_text("two years")
    assert_refused(project.set_up(VENV="work"), "is not a virtual environment")
    assert (project.root / "work" / "thesis.txt").read_text() == "two years"


@pytest.fixture(scope="module")
def with_pip(tmp_path_factory, repository):
    """A project that was set up once, whose environment has pip. Not to be changed."""
    project = fill(tmp_path_factory.mktemp("pip") / "project", repository)
    result = project.set_up()
    assert result.returncode == 0, result.stderr
    return project


@pytest.fixture
def active(with_pip):
    """The environment of the project that was set up. Not to be changed."""
    return with_pip.venv


@pytest.fixture
def bare(tmp_path, repository, active):
    """A project in which nothing has been set up, and Python makes environments with pip."""
    return fill(tmp_path / "project", repository, active)


@pytest.fixture
def installed(tmp_path, with_pip):
    """A copy of the project whose environment has pip, for the test to change."""
    shutil.copytree(with_pip.root, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project")


@pytest.mark.soak
def test_wheels_are_found_in_several_folders_of_pips_variable(with_pip):
    assert with_pip.versions() == {"tiny_package": "1.0"}


@pytest.mark.soak
def test_uv_is_installed_where_there_is_none_that_knows_the_settings(bare):
    write_program(bare.root / "bin" / "uv", "echo uv 0.4.30")
    unreachable = {"PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PIP_INDEX_URL": NOWHERE}
    refused = bare.set_up(PIP_RETRIES="0", **unreachable)
    assert_refused(refused, "the package index cannot be reached", bare.log)
    write_program(bare.root / "bin" / "uv", "exit 127")
    program = f'#!/bin/sh\nexec "{uv.find_uv_bin()}" "$@"\n'
    write_wheel(bare.root / "wheels", "uv", "1.0", {"uv-1.0.data/scripts/uv": program})
    assert bare.set_up().returncode == 0
    assert bare.versions() == {"tiny_package": "1.0"} and (bare.venv / "bin" / "uv").exists()
    assert bare.set_up().stderr == ""


@pytest.mark.soak
def test_wheels_are_found_in_several_folders_of_pips_file(bare, tmp_path):
    lines = "".join(f"\n    {bare.root / folder}" for folder in ("bin", "wheels"))
    (tmp_path / "pip.conf").write_text(f"[global]\nfind-links ={lines}\n")
    result = bare.set_up(PIP_FIND_LINKS="", PIP_CONFIG_FILE=tmp_path / "pip.conf")
    assert result.returncode == 0, result.stderr
    assert bare.versions() == {"tiny_package": "1.0"}


@pytest.mark.soak
def test_the_users_constraints_hold_beside_the_lock(installed, tmp_path):
    write_wheel(installed.root / "wheels", "tiny_tool", "1.1")
    installed.write("requirements-dev", "-r requirements.txt", "tiny-tool")
    (tmp_path / "mine.txt").write_text("tiny-tool==1.0\n")
    result = installed.set_up("dev", PIP_CONSTRAINT=tmp_path / "mine.txt")
    assert result.returncode == 0, result.stderr
    assert installed.versions() == {"tiny_package": "1.0", "tiny_tool": "1.0"}


@pytest.fixture(params=["uv", "pip"])
def either(bare, request):
    """A project in which nothing has been set up, with and without uv."""
    if request.param == "pip":
        write_program(bare.root / "bin" / "uv", "exit 127")
    return bare


@pytest.mark.soak
def test_active_environment_is_used_with_a_pip_before_22_2_and_no_uv(bare, active, tmp_path):
    write_program(bare.root / "bin" / "uv", "exit 127")
    python = write_program(
        tmp_path / "active" / "bin" / "python",
        f'case "$*" in *--dry-run*) echo "no such option: --dry-run" >&2; exit 2; esac\n'
        f'exec "{active}/bin/python" "$@"',
    )
    result = bare.set_up(VIRTUAL_ENV=tmp_path / "active")
    assert (result.stdout, result.stderr) == (f"{python}\n", "")
    assert not bare.venv.exists()


@pytest.mark.soak
def test_active_environment_that_does_not_satisfy_is_named_and_left(either, active):
    either.write("requirements", "tiny-package==1.1")
    either.write("requirements-lock")
    result = either.set_up(VIRTUAL_ENV=active)
    assert f"the active environment {active} lacks tiny-package==1.1: using" in result.stderr
    assert Project(active.parent).versions() == {"tiny_package": "1.0"}


@pytest.mark.soak
def test_active_environment_of_an_old_python_is_left(installed, tmp_path):
    write_program(tmp_path / "active" / "bin" / "python", "echo 2.7")
    result = installed.set_up(CONDA_PREFIX=tmp_path / "active")
    assert result.stdout == f"{installed.interpreter}\n"
    assert "lacks Python 3.9 or later" in result.stderr


@pytest.mark.soak
def test_venv_passes_over_the_active_environment(installed, active):
    installed.venv.rename(installed.root / "other")
    result = installed.set_up(VENV="other", VIRTUAL_ENV=active)
    assert result.stdout == f"{installed.root / 'other' / 'bin' / 'python'}\n"


@pytest.mark.soak
def test_python_of_another_version_than_the_environment_is_refused(installed):
    python = write_program(installed.root / "bin" / "my-python", AS_OTHER_VERSION.format("3.99", 0))
    assert_refused(installed.set_up(PYTHON=python), "has Python", "VENV")
    assert installed.versions()


@pytest.mark.soak
def test_full_disk_is_refused(bare):
    line = "error: failed to write: No space left on device (os error 28)"
    write_program(
        bare.root / "bin" / "uv",
        f'echo "uv 1.0"; [ "$1" = --version ] || {{ echo "{line}"; exit 2; }}',
    )
    assert_refused(bare.set_up(), "the disk is full", "VENV")


OWN_INDEX = NOWHERE.replace("simple", "own")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("given", "index"),
    [
        ({"PIP_NO_INDEX": "0"}, NOWHERE),
        ({"PIP_NO_INDEX": "", "NO_INDEX": "1"}, NOWHERE),
        ({"PIP_NO_INDEX": "", "UV_DEFAULT_INDEX": OWN_INDEX}, OWN_INDEX),
        ({"PIP_NO_INDEX": "", "UV_INDEX_URL": OWN_INDEX}, OWN_INDEX),
    ],
)
def test_an_unreachable_index_is_one_line_and_keeps_the_environment(installed, given, index):
    """uv's own variables come before pip's, whose setting may forbid any index."""
    installed.write("requirements", "tiny-package==1.0", "another-package")
    result = installed.set_up(PIP_INDEX_URL=NOWHERE, **given)
    assert_refused(result, "the package index cannot be reached", installed.log)
    assert len(result.stderr.splitlines()) == 2  # what it was doing, and the error
    assert f" {index}/" in installed.log.read_text()
    installed.write("requirements", "tiny-package==1.0")
    assert installed.set_up().stderr == ""


@pytest.mark.soak
def test_other_failure_shows_the_end_of_the_log(installed):
    installed.write("requirements", "another-package==7")
    result = installed.set_up()
    assert_refused(result, installed.log)
    assert "you require another-package==7" in result.stderr


@pytest.mark.soak
def test_interrupted_installation_is_repaired(installed):
    """A package is half-written, and the installer would take it for complete."""
    installed.write("requirements", "tiny-package==1.0", "another-package")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        process = installed.start(PIP_NO_INDEX="", PIP_INDEX_URL=index)
        silent.settimeout(60)
        connection, _ = silent.accept()  # the installer is at work, at the user's index
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        connection.close()
    next(installed.venv.glob("lib/python*/site-packages/tiny_package.py")).unlink()

    installed.write("requirements", "tiny-package==1.0")
    result = installed.set_up()
    assert result.returncode == 0, result.stderr
    assert "did not finish" in result.stderr
    assert list(installed.venv.glob("lib/python*/site-packages/tiny_package.py"))
    assert installed.set_up().stderr == ""


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
def test_two_calls_at_once_install_once(bare):
    processes = [bare.start(), bare.start()]
    results = [process.communicate() for process in processes]
    assert [output for output, _ in results] == [f"{bare.interpreter}\n"] * 2
    assert sum("installing" in errors for _, errors in results) == 1
