"""A compiled program with an objective, which is a graph break, computes what eager code does."""

import pytest
import torch

from smile import Objective
from tests.smile.hidden_states import HOW, SPECS, example, from_hidden, from_logits, gradients


@pytest.mark.parametrize(("spec", "how"), [("all", "mean"), ("smile", "mean"), ("subsets", "none")])
@pytest.mark.parametrize("way", [from_logits, from_hidden])
def test_a_compiled_program_has_the_loss_and_gradients_of_the_eager_one(way, spec, how):
    torch._dynamo.reset()
    objective = Objective(SPECS[spec], 0.1)

    def program(hidden, weight, bias, labels):
        return way(objective, [hidden.tanh(), weight, bias], labels, **HOW[how])

    compiled, found = torch.compile(program, backend="aot_eager"), []
    for length in (7, 9, 7):
        inputs, labels = example(length=length)
        for each in (program, compiled):
            output = each(*inputs, labels)
            found.append([output, gradients(output.loss, inputs)])
    torch.testing.assert_close(found[1::2], found[::2])
