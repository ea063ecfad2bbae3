"""Fixtures that every test can ask for, and the settings that all of them run under."""

import os
from pathlib import Path

# Set before torch and the Hugging Face libraries read them, and inherited by the processes that
# tests start: one thread each is faster than many processes that share the cores, and repeatable.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def seeded():
    """Start every test from the same random numbers, in whatever order the tests run."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def repository():
    """Return the root folder of the repository."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data():
    """Return the folder of sample annotations and photos; skip the test where there is none."""
    return _beside_repository("data")


@pytest.fixture(scope="session")
def golden():
    """Return the folder of recorded numbers of a tiny BLIP; skip the test where there is none."""
    return _beside_repository("golden/tiny")


def _beside_repository(name):
    folder = REPOSITORY.parent / "shared" / name
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: the sample files are not part of the repository")
    return folder
