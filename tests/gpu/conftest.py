"""What the checks on a GPU print, such as errors, scripts/gpu.sh shows."""

import pytest
import torch

from tests.gpu.card import REHEARSAL


@pytest.fixture(autouse=True, scope="session")
def gpu():
    if not torch.cuda.is_available() and not REHEARSAL:
        pytest.skip("there is no GPU; GPU_REHEARSAL=1 rehearses on the CPU")
