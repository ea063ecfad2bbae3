"""A head that is divided over processes, on gloo, against one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "what the head's methods give": "definitions frozen half_precision no_whole_weight",
    "placements": "placements what_is_refused",
    "models": "tensor_parallel fsdp",
}


def run(folder, repository, processes, cases):
    script = Path(__file__).with_name("head_in_processes.py")
    result = subprocess.run(
        [sys.executable, str(script), str(folder), processes, *cases.split()],
        env={**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("cases", CASES)
def test_two_processes_give_what_one_gives(cases, tmp_path, repository):
    run(tmp_path, repository, "2", CASES[cases])


@pytest.mark.slow
def test_a_head_that_is_divided_within_what_fsdp_gathers(tmp_path, repository):
    run(tmp_path, repository, "4", "fsdp_and_tensor_parallel")
