"""The fixture of the checks on a GPU. What they print, such as errors, scripts/gpu.sh shows."""

import pytest
import torch

from tests.gpu.card import REHEARSAL, Card


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    if not torch.cuda.is_available() and not REHEARSAL:
        pytest.skip("there is no GPU; GPU_REHEARSAL=1 rehearses on the CPU")
    return Card(tmp_path_factory.mktemp("gpu"))
