"""What the checks on a GPU are given. `benchmarks/checks.py` calls them without pytest, too."""

import os

import pytest
import torch

from benchmarks.checks import CheckContext

REHEARSE = "GPU_REHEARSAL" in os.environ  # at tiny sizes, on the CPU


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    if not torch.cuda.is_available() and not REHEARSE:
        pytest.skip("there is no GPU; GPU_REHEARSAL=1 rehearses on the CPU")
    return CheckContext(REHEARSE, tmp_path_factory.mktemp("gpu"))
