"""A head that is divided over processes, and a batch, on gloo, against one process."""

import pytest

from tests.smile import head_in_processes
from tests.soak.processes import Processes

CASES = {
    "what the head's methods give": "definitions frozen half_precision no_whole_weight",
    "placements": "placements what_is_refused",
    "models": "tensor_parallel ddp fsdp",
}


def run(folder, processes, cases):
    run = Processes(head_in_processes.main, cases.split(), folder / "output", processes)
    assert run.wait(200) == [0] * processes, run.said()


@pytest.mark.slow
@pytest.mark.parametrize("cases", CASES)
def test_two_processes_give_what_one_gives(cases, tmp_path):
    run(tmp_path, 2, CASES[cases])


@pytest.mark.slow
def test_a_head_that_is_divided_within_what_fsdp_gathers(tmp_path):
    run(tmp_path, 4, "fsdp_and_tensor_parallel")
