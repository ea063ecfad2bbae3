"""Which versions scripts/setup.sh installs, and how scripts/lock.sh writes them down."""

import platform
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
    project.lock("# tested together", "tiny-package==1.0", "package-of-another-platform==3.0")
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
    assert "the versions of requirements-lock-py" in result.stderr
    # What satisfies the requirements is left as it is.
    begun.lock("tiny-package==1.1")
    assert begun.set_up().stderr == ""


def test_latest_takes_what_the_requirements_allow(begun):
    result = begun.set_up(LATEST="1")
    assert begun.versions() == {"tiny_package": "1.1"}
    assert "the newest versions" in result.stderr


def test_a_python_without_a_lock_takes_what_the_requirements_allow(begun):
    begun.lock().rename(begun.lock("tiny-package==1.0", python="3.99"))
    assert begun.set_up().returncode == 0
    assert begun.versions() == {"tiny_package": "1.1"}


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


@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="made on Linux x86-64"
)
def test_lock_is_made_of_the_newest_versions_and_of_what_they_need(choosing):
    write_wheel(
        choosing.root / "wheels", "tiny_package", "1.2", "Requires-Dist: tiny.part[more]>=1"
    )
    extra = ("Provides-Extra: more", 'Requires-Dist: tiny_extra; extra == "more"')
    write_wheel(choosing.root / "wheels", "tiny_part", "1.0", *extra)
    write_wheel(choosing.root / "wheels", "tiny_extra", "2.0+local")
    (choosing.root / "requirements-dev.txt").write_text("-r requirements.txt\n")
    lock = choosing.lock("tiny-package==1.0")
    result = subprocess.run(
        ["bash", str(choosing.root / "scripts" / "lock.sh"), "python3"],
        env=choosing.environment(TMPDIR=choosing.root),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    comment, *lines = lock.read_text().splitlines()
    assert comment.startswith("# ")
    assert lines == ["tiny-extra==2.0", "tiny-package==1.2", "tiny-part==1.0"]
    assert not choosing.venv.exists() and not list(choosing.root.glob("smile-lock*"))
