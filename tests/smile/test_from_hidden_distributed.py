"""The objective from hidden states under DistributedDataParallel, compiled or not, on gloo."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from smile import Objective
from tests.soak.processes import Processes


class Captioner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(30, 8)
        self.bias = torch.nn.Parameter(torch.randn(30))
        self.objective = Objective({"mle": 0.3, "smile": 0.7}, 0.1)

    def forward(self, tokens):
        hidden = self.words(tokens[:, :-1]).tanh()
        return self.objective.from_hidden(hidden, self.words.weight, self.bias, tokens[:, 1:]).loss


def compare():
    tokens = torch.randint(30, (4, 6), generator=torch.Generator().manual_seed(1))
    alone = Captioner()
    alone(tokens).backward()
    eager = DistributedDataParallel(Captioner())
    wrapped = torch.compile(DistributedDataParallel(Captioner()), backend="aot_eager")
    within = torch.compile(Captioner(), backend="aot_eager", fullgraph=True)
    for model in (eager, wrapped, DistributedDataParallel(within)):
        model(tokens.chunk(2)[dist.get_rank()]).backward()
        for ours, theirs in zip(model.parameters(), alone.parameters()):
            torch.testing.assert_close(ours.grad, theirs.grad)


def main(_):
    """What each of two processes does."""
    dist.init_process_group("gloo")
    compare()
    gc.collect()  # a wrapped model that outlives the group can abort the process at its end
    dist.destroy_process_group()
    return 0


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_the_whole_batch(tmp_path):
    run = Processes(main, [], tmp_path / "output", 2)
    assert run.wait(200) == [0, 0], run.said()
