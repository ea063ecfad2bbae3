"""What a program sets when it starts; an import sets nothing."""

import ast
import ctypes
import os
import subprocess
import sys

import pytest

IMPORTED = ["captioning", "captioning.data", "captioning.models", "captioning.train", "app", "BLIP"]


def run(program, repository, *given, without=(), **variables):
    """What a program prints, without the variables that begin with a prefix."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(without)}
    done = subprocess.run(
        [sys.executable, "-c", program, *given],
        env={**kept, **variables, "PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip()


IMPORTS = """
import gc, importlib, os, sys
import torch

def settings():
    ours = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}  # set by torch
    return ours, gc.isenabled(), gc.get_threshold(), torch.get_num_threads()

before = settings()
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert settings() == before, name
print("nothing")
"""


def test_an_import_sets_nothing(repository):
    assert run(IMPORTS, repository, *IMPORTED, without=("GOMP_", "MALLOC_")) == "nothing"


TUNED = "from captioning.runtime.start import tune_process; import gc, os, sys; tune_process(); "


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_waiting_threads_soon_sleep_unless_the_user_says_otherwise(repository, given, found):
    program = TUNED + "print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    assert run(program, repository, without=("GOMP_", "OMP_"), **given) == f"{found} False"


FAULTS = """
import ctypes, resource
C = ctypes.CDLL(None)
C.malloc.restype, C.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
faults = []
for _ in range(21):
    place = C.malloc(2**24)
    ctypes.memset(place, 1, 2**24)
    C.free(place)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[0])
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc's malloc")
@pytest.mark.parametrize(
    ("given", "kept"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "1000000"}, False)]
)
def test_freed_memory_is_kept_unless_the_user_says_otherwise(repository, given, kept):
    """Counted in page faults: 20 times 16 MB are 81,920 pages."""
    assert (int(run(TUNED + FAULTS, repository, without="MALLOC_", **given)) < 1000) == kept


def test_garbage_is_collected_once_a_program_begins(repository):
    program = TUNED + (
        "from captioning.runtime.program import exit_code; print(gc.isenabled());"
        "exit_code(lambda: print(gc.isenabled()))"
    )
    assert run(program, repository).split() == ["False", "True"]


def test_every_program_is_tuned_before_it_imports_torch(repository):
    programs = [*repository.glob("captioning/**/*.py"), repository / "app" / "__main__.py"]
    found = []
    for path in programs:
        statements = ast.parse(path.read_text()).body[1:]  # after the docstring
        if any("__main__" in ast.unparse(s) for s in statements if isinstance(s, ast.If)):
            found.append(path.name)
            if path.name not in ("launch.py", "publish.py"):  # these compute nothing
                assert "tune_process()" in ast.unparse(statements[0]), path
    assert len(found) == 17
