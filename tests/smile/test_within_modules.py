"""The objective within other modules: what torch and others ask of a module still works."""

import copy
import pickle

import pytest
import torch
from torch import nn

from smile import OBJECTIVES, Objective

OBJECTIVE = {"mle": 0.2, "focal": {"weight": 0.3, "gamma": 1.5}, "truncation": 0.5}


class Speller(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.objective = nn.Embedding(30, 8), Objective(OBJECTIVE)

    def forward(self, tokens):
        hidden = self.words(tokens[:, :-1])
        return self.objective.from_hidden(hidden, self.words.weight, None, tokens[:, 1:]).loss


def test_what_torch_asks_of_every_module():
    model, tokens = Speller(), torch.randint(30, (3, 6))
    model(tokens).backward()
    assert [*map(id, model.parameters())] == [id(model.words.weight)]
    assert list(model.objective.parameters()) == []
    model.apply(lambda module: sum(p.numel() for p in module.parameters()))  # as FSDP wraps
    model.zero_grad()
    model.objective.zero_grad()
    assert model.words.weight.grad is None
    model.requires_grad_(False)
    assert not model(tokens).requires_grad
    model.double().eval().to("meta")


@pytest.mark.parametrize("spec", [*OBJECTIVES, OBJECTIVE], ids=str)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_is_the_same_objective(spec, copied):
    objective = Objective(spec, label_smoothing=0.1).with_tokens(0, 1)
    logits, labels = torch.randn(3, 6, 30), torch.randint(2, 30, (3, 6))
    found = []
    for each in (objective, copied(objective)):
        torch.manual_seed(1)
        found.append(each(logits, labels))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
