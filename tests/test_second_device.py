"""Losses, captions and gradients stay on the device of their inputs."""

import json
import subprocess
import sys

import pytest
from torch.utils import backend_registration


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no devices that are made in Python",
)
def test_nothing_is_mixed_with_tensors_of_the_cpu(repository):
    command = [sys.executable, "-m", "tests.second_device"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
