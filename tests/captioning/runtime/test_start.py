"""A program sets process settings when it starts; an import sets nothing."""

import gc
import os
import subprocess
import sys

import pytest

from captioning.runtime.program import run_program
from captioning.runtime.start import tune_process


def run(program, repository, *given, without=(), **variables):
    """Return what a program prints. without: prefixes of variables that it does not get."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(without)}
    done = subprocess.run(
        [sys.executable, "-c", program, *given],
        env={**kept, **variables, "PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip()


# Prints the heavy libraries that are loaded with a configuration, then the first import that sets
# anything.
IMPORTS = """
import gc, importlib, os, sys
import torch

def settings():
    ours = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}  # set by torch
    return ours, gc.isenabled(), gc.get_threshold(), torch.get_num_threads()

def those_that_set(*names):
    for name in names:
        importlib.import_module(name)
        if settings() != before:
            yield name

before = settings()
found = [*those_that_set("captioning.train", "captioning.evaluate", "captioning.report.__main__")]
from captioning.config import load_config
load_config(sys.argv[1])
print(sorted({"torchvision", "timm", "transformers", "torch._dynamo"} & set(sys.modules)))
print([*found, *those_that_set("captioning.data", "captioning.models", "app", "BLIP")])
"""


@pytest.fixture(scope="module")
def imported(repository):
    """Return the lines of IMPORTS, from a new process."""
    config = repository / "configs/caption_coco.yaml"
    return run(IMPORTS, repository, str(config), without=("GOMP_", "MALLOC_")).splitlines()


def test_reading_a_configuration_imports_no_library_of_models_or_images(imported):
    assert imported[0] == "[]"


def test_an_import_sets_nothing(imported):
    assert imported[1] == "[]"


TUNED = "from captioning.runtime.start import tune_process; import gc, os, sys; tune_process(); "


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_waiting_threads_soon_sleep_unless_the_user_says_otherwise(repository, given, found):
    program = TUNED + "print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    assert run(program, repository, without=("GOMP_", "OMP_"), **given) == f"{found} False"


def test_garbage_is_collected_once_a_program_begins(monkeypatch):
    for name in ("MALLOC_ARENA_MAX", "OMP_WAIT_POLICY"):  # which this process keeps
        monkeypatch.setenv(name, "1")
    found = []
    try:
        tune_process()
        found.append(gc.isenabled())
        run_program(lambda: found.append(gc.isenabled()))
    finally:
        gc.enable()
    assert found == [False, True]
