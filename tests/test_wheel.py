"""The wheel: built from the tree, it runs in an environment that has torch and nothing else."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

setuptools = pytest.importorskip("setuptools", minversion="77", reason="builds wheels from 77 on")
NOT_SOURCE = (".*", "data", "checkpoints", "output", "build", "*.egg-info", "__pycache__")


@pytest.fixture(scope="module")
def wheel(repository, tmp_path_factory):
    """The wheel that `pip install .` builds, out of a copy of the tree."""
    tree, target = (tmp_path_factory.mktemp(name) for name in ("tree", "wheel"))
    ignore = shutil.ignore_patterns(*NOT_SOURCE)
    shutil.copytree(repository, tree, ignore=ignore, dirs_exist_ok=True)
    build = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    run([sys.executable, "-c", build, str(target)], cwd=tree)
    (path,) = target.glob("*.whl")
    return path


def run(command, **options):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def needed_by(name, found):
    """The distributions that one needs, itself included, as they are installed here."""
    if canonicalize_name(name) not in found:
        distribution = importlib.metadata.distribution(name)
        found[canonicalize_name(name)] = distribution
        for requirement in map(Requirement, distribution.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed_by(requirement.name, found)
    return found


def test_wheel_holds_the_objective_alone_and_asks_for_torch_alone(wheel, repository):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    files = repository.glob("smile/**/*.py")
    assert sorted(names) == sorted(path.relative_to(repository).as_posix() for path in files)
    assert [line for line in lines if line.startswith("Requires-Dist")] == [
        "Requires-Dist: torch>=2.8"
    ]


@pytest.mark.slow
def test_wheel_runs_beside_torch_alone(wheel, tmp_path):
    venv.create(tmp_path / "venv")
    (site,) = tmp_path.glob("venv/lib/python*/site-packages")
    offline = ["--no-index", "--no-deps", "--disable-pip-version-check"]
    run([sys.executable, "-m", "pip", "install", *offline, "--target", str(site), str(wheel)])
    for distribution in needed_by("torch", {}).values():
        for name in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(Path(distribution.locate_file(name)).resolve())
    program = """
        import importlib.util, torch
        from smile import Objective, SmileLoss, smile_loss
        from smile.hf import use_smile
        absent = ("numpy", "transformers", "BLIP", "decoding", "captioning", "pytest")
        print([name for name in absent if importlib.util.find_spec(name)])
        logits = torch.zeros(1, 3, 50, requires_grad=True)
        labels = torch.tensor([[7, 9, -100]])
        loss = smile_loss(logits, labels)
        assert SmileLoss()(logits, labels) == loss
        Objective("smile", first_token_mle=False)(logits, labels).loss.backward()
        print(f"{loss.item():.4f} {logits.grad.count_nonzero()}")
    """
    python = tmp_path / "venv" / "bin" / "python"
    flags = ["-I", "-W", "ignore", "-c", textwrap.dedent(program)]
    assert run([str(python), *flags], cwd=tmp_path).split("\n")[:2] == ["[]", "0.6931 4"]
