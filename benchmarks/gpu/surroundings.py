"""The Python that is there: what it lacks, what wheels add to it, where its programs may write."""

import importlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.parts import PARTS

REPOSITORY = Path(__file__).resolve().parents[2]
IMPORTED_AS = {"pillow": "PIL"}
LONGEST_SOCKET = 60  # of a folder: the names of sockets within it must stay below 108 bytes


def is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def required() -> dict[str, str]:
    """The distributions of requirements.txt, each with the module that it is imported as."""
    names = re.findall(r"^[\w.-]+", (REPOSITORY / "requirements.txt").read_text(), re.M)
    return {name: IMPORTED_AS.get(name, name) for name in names}


def missing() -> dict[str, list[str]]:
    """Distributions of requirements.txt that are not there, with the parts that each costs."""
    absent = {name: module for name, module in required().items() if not is_there(module)}
    return {
        name: [part.name for part in PARTS if module in (*part.needs, "torch")]
        for name, module in absent.items()
    }


def install(wheels: Path, folder: Path, wanted: Sequence[str]) -> list[str]:
    """Put into `folder` the wheels of what is missing; what pip said of those that it could not.

    That is what is `wanted` and every other wheel of which no version is installed: what those need
    in turn. Nothing that is there gets another version.
    """
    names = {path.name.split("-")[0] for path in sorted(wheels.glob("*.whl"))}
    wanted_names = {_plain(name) for name in wanted}
    chosen = [n for n in sorted(names) if _plain(n) in wanted_names or not _installed(n)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-compile"]
    command += ["--find-links", str(wheels), "--target", str(folder)]
    problems = []
    if chosen and _fails([*command, *chosen]):  # one that does not suit keeps out all
        problems = [said for name in chosen if (said := _fails([*command, "--upgrade", name]))]
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    return problems


def _fails(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
    return f"{command[-1]}: {lines[-1]}" if done.returncode else ""


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def variables(out: Path, rehearsal: bool) -> dict[str, str]:
    """The environment of a part: no network, and every cache within `out`."""
    cache = out / "cache"
    places = {
        "HF_HOME": cache / "huggingface",
        "TORCH_HOME": cache / "torch",
        "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
        "TRITON_HOME": cache,
        "TRITON_CACHE_DIR": cache / "triton",
        "CUDA_CACHE_PATH": cache / "cuda",
        "PYTORCH_KERNEL_CACHE_PATH": cache / "kernels",
        "MPLCONFIGDIR": cache / "matplotlib",
        "XDG_CACHE_HOME": cache,
    }
    if len(str(out)) < LONGEST_SOCKET:
        places["TMPDIR"] = out / "tmp"
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    path = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")]), str(out / "packages")]
    own = {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if rehearsal:
        own |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own, **{name: str(place) for name, place in places.items()}}
