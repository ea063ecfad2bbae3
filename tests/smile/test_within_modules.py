"""The objective within other modules: what torch and others ask of a module still works."""

import ast
import copy
import pickle

import pytest
import torch
from torch import nn

from smile import OBJECTIVES, Objective
from tests.test_architecture import source_files

MODULES = {name for name, kind in vars(nn).items() if isinstance(kind, type)}
METHODS = {name for name in dir(nn.Module) if callable(getattr(nn.Module, name))}
OBJECTIVE = {"mle": 0.2, "focal": {"weight": 0.3, "gamma": 1.5}, "truncation": 0.5}


def hidden_methods(trees):
    """(class, attribute) where a module has an attribute in the place of a method of nn.Module."""
    classes = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    modules, before = set(MODULES), 0
    while len(modules) > before:
        before = len(modules)
        for each in classes:
            bases = {ast.unparse(base).rpartition(".")[2] for base in each.bases}
            modules |= {each.name} if bases & modules else set()
    for each in classes:
        if each.name in modules:
            for node in ast.walk(each):
                stored = isinstance(getattr(node, "ctx", None), ast.Store)
                of_self = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
                if stored and of_self and node.attr in METHODS:
                    yield each.name, node.attr
            for node in each.body:
                for target in getattr(node, "targets", [getattr(node, "target", None)]):
                    if isinstance(target, ast.Name) and target.id in METHODS:
                        yield each.name, target.id


def test_no_module_has_an_attribute_in_the_place_of_a_method_of_torchs(repository):
    one = "class A(nn.Linear):\n    def f(self):\n        self.half, self.b = 1, 2\n"
    two = "class B(A):\n    zero_grad: int = 0\n    half = 1\nclass C:\n    half = 1\n"
    found = set(hidden_methods([ast.parse(one), ast.parse(two)]))
    assert found == {("A", "half"), ("B", "zero_grad"), ("B", "half")}
    paths = [p for p in source_files(repository) if p.suffix == ".py"]
    trees = [ast.parse(p.read_text(encoding="utf-8")) for p in paths if "tests" not in p.parts]
    assert list(hidden_methods(trees)) == []


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


def test_a_model_of_transformers_that_holds_one():
    transformers = pytest.importorskip("transformers")

    class Holds(transformers.GPT2PreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.transformer, self.objective = transformers.GPT2Model(config), Objective(OBJECTIVE)
            self.post_init()

    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=30)
    model = Holds(config)
    assert model.num_parameters() == model.transformer.num_parameters()
