"""Which versions scripts/setup.sh installs."""

import shutil
import subprocess
import sys

import pytest

from tests.e2e.setup_project import assert_refused, fill, write_wheel


@pytest.fixture
def choosing(tmp_path, repository):
    """A project with two versions of a package to choose from, of which the older is locked."""
    project = fill(tmp_path / "project", repository)
    write_wheel(project.root / "wheels", "tiny_package", "1.1")
    project.require("tiny-package>=1.0")
    project.lock(
        "# tested together",
        'tiny-package==1.0 ; python_full_version >= "3"',
        'tiny-package==1.1 ; python_full_version < "3"',
        "package-of-another-platform==3.0",
    )
    return project


@pytest.fixture(scope="module")
def nothing_installed(tmp_path_factory):
    """An environment of pip alone, which takes seconds to make."""
    folder = tmp_path_factory.mktemp("environment") / "empty"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder


@pytest.fixture
def begun(choosing, nothing_installed):
    """That project where the environment is there already."""
    shutil.copytree(nothing_installed, choosing.venv, symlinks=True)
    return choosing


def test_locked_versions_are_the_default(begun):
    result = begun.set_up()
    assert result.returncode == 0, result.stderr
    assert begun.versions() == {"tiny_package": "1.0"}
    assert "the versions of requirements-lock.txt" in result.stderr
    # What satisfies the requirements is left as it is.
    begun.lock("tiny-package==1.1")
    assert begun.set_up().stderr == ""


def test_latest_takes_what_the_requirements_allow(begun):
    result = begun.set_up(LATEST="1")
    assert begun.versions() == {"tiny_package": "1.1"}
    assert "the newest versions" in result.stderr


def test_a_lock_is_kept_beside_constraints_of_the_users(begun, tmp_path):
    write_wheel(begun.root / "wheels", "tiny_tool", "1.1")
    (begun.root / "requirements-dev.txt").write_text("-r requirements.txt\ntiny-tool\n")
    (tmp_path / "mine.txt").write_text("tiny-tool==1.0\n")
    result = begun.set_up("dev", PIP_CONSTRAINT=tmp_path / "mine.txt")
    assert result.returncode == 0, result.stderr
    assert begun.versions() == {"tiny_package": "1.0", "tiny_tool": "1.0"}


def test_a_version_that_cannot_be_had_any_more_names_the_way_out(begun):
    begun.lock("tiny-package==1.0.5")
    result = begun.set_up()
    assert_refused(result, begun.log, "LATEST=1")
    assert begun.set_up(LATEST="1").returncode == 0
