"""A program sets process settings when it starts; an import sets nothing."""

import os
import subprocess
import sys

import pytest

IMPORTED = ["captioning", "captioning.data", "captioning.models", "captioning.train", "app", "BLIP"]


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


def test_garbage_is_collected_once_a_program_begins(repository):
    program = TUNED + (
        "from captioning.runtime.program import run_program; print(gc.isenabled());"
        "run_program(lambda: print(gc.isenabled()))"
    )
    assert run(program, repository).split() == ["False", "True"]


HEAVY = {"torchvision", "timm", "transformers", "torch._dynamo"}


def test_reading_a_configuration_imports_no_library_of_models_or_images(repository):
    program = "import captioning.train, captioning.evaluate, captioning.report.__main__, sys;" + (
        "from captioning.config import load_config; load_config(sys.argv[1]);"
        f"print({HEAVY} & set(sys.modules))"
    )
    config = repository / "configs/caption_coco.yaml"
    assert run(program, repository, str(config)) == "set()"
