"""A head that is divided over processes, and a batch, on gloo, against one process."""

import pytest

from tests.smile import head_in_processes
from tests.soak.processes import Processes

CASES = {
    "what the head's methods give": "definitions no_whole_weight",
    "placements": "placements what_is_refused",
    "models": "tensor_parallel fsdp",
}


@pytest.mark.slow
@pytest.mark.parametrize("cases", CASES)
def test_two_processes_give_what_one_gives(cases, tmp_path):
    run = Processes(head_in_processes.main, CASES[cases].split(), tmp_path / "output", 2)
    assert run.wait(200) == [0, 0], run.said()
