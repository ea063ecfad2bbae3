"""Compiled programs with the objective from hidden states: one graph, what eager gives."""

import contextlib
import shutil

import pytest
import torch
from torch import nn

from smile import Objective
from tests.markers import slow
from tests.smile.hidden_states import CAPPED, HOW, IGNORE, PACKED, SPECS

MIXED = SPECS[-1]
ALTERNATIVES = {"mle": 0.1, "unlikelihood": {"weight": 0.5, "alpha": 0.3}, "gem": 0.2, "focal": 0.1}
WITH = {**HOW, "all": {**PACKED, **CAPPED, "reduction": "none"}}


@pytest.fixture(autouse=True)
def nothing_is_compiled_yet():
    torch._dynamo.reset()


class Captioner(nn.Module):
    def __init__(self, spec, bias=True, dtype=torch.float64, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(23, 8, dtype=dtype)
        self.layer = nn.Linear(8, 8, dtype=dtype)
        self.bias = nn.Parameter(torch.randn(23, dtype=dtype)) if bias else None
        settings = {"random_subset_size": 4, "pad_token_id": 1, "label_smoothing": 0.1, **settings}
        self.objective = Objective(spec, **settings)

    def forward(self, tokens, labels, **how):
        hidden = self.layer(self.words(tokens)).tanh()
        return self.objective.from_hidden(hidden, self.words.weight, self.bias, labels, **how)


def example(length=7):
    torch.manual_seed(1)
    tokens, labels = torch.randint(23, (2, 5, length))
    labels[0, 4:] = labels[1, 1:] = labels[2, :] = IGNORE
    labels[3, 0] = IGNORE
    return tokens, labels


def step(run, model, inputs, **how):
    model.zero_grad()
    torch.manual_seed(2)  # of the words that random subsetting draws
    output = run(*inputs, **how)
    each = torch.arange(1, 1 + output.loss.numel()).view_as(output.loss)
    (output.loss * each).sum().mul(3).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return [output.loss.detach(), output.parts, output.tokens, gradients]


def compare(model, inputs, compiled=None, autocast=None, tolerance=0, **how):
    if compiled is None:
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext():
        found, expected = (step(each, model, inputs, **how) for each in (compiled, model))
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    return compiled


@pytest.mark.parametrize(
    ("spec", "how"),
    [
        (MIXED, "all"),
        (ALTERNATIVES, "all"),
        *[slow(spec, "mean") for spec in ("smile", "mle")],
        *[slow(MIXED, how) for how in HOW],
    ],
    ids=str,
)
def test_one_graph_gives_losses_and_gradients_of_eager(spec, how):
    compare(Captioner(spec), example(), **WITH[how])


@pytest.mark.parametrize("dtype", [slow(torch.bfloat16), torch.float16])
def test_half_precision_compiled_is_that_of_eager(dtype):
    compare(Captioner(MIXED, dtype=torch.float32), example(), autocast=dtype)
    compare(Captioner(MIXED, dtype=dtype), example())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("frozen", "how"),
    [(["words"], "mean"), (["layer"], "none"), (["bias"], "none"), (["words", "layer"], "mean")],
    ids=str,
)
def test_frozen_parameters_get_no_gradient_when_compiled(frozen, how):
    model = Captioner(MIXED)
    for name in frozen:
        getattr(model, name).requires_grad_(False)
    compare(model, example(), **WITH[how])


@pytest.mark.slow
def test_a_compiled_program_follows_other_batch_sizes_and_changed_settings():
    model = Captioner(MIXED)
    run = compare(model, example())
    for length in (9, 4, 12):
        compare(model, example(length), run)
    model.objective.label_smoothing = 0.3
    model.objective.weights["mle"] = 2.0
    compare(model, example(9), run)
    dynamic = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (7, 9):
        compare(model, example(length), dynamic)


def test_wrong_labels_and_weights_are_refused_by_the_compiled_program():
    model, (tokens, labels) = Captioner("smile"), example()
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    run(tokens, labels)
    with pytest.raises(ValueError, match=r"label at caption 4, position 2 is -5, but the"):
        run(tokens, labels.index_put((torch.tensor(4), torch.tensor(2)), torch.tensor(-5)))
    with pytest.raises(ValueError, match="a weight is -1"):
        run(tokens, labels, weights=-torch.ones(5))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="Inductor needs a C++ compiler")
def test_inductor_gives_losses_and_gradients_of_eager():
    model = Captioner(MIXED, dtype=torch.float32)
    # The second option leaves out trial compilations for each instruction set.
    options = {"fallback_random": True, "cpp.vec_isa_ok": True}
    run = torch.compile(model, fullgraph=True, options=options)
    compare(model, example(), run, tolerance=1e-5)


def test_a_second_derivative_of_a_compiled_loss_is_refused():
    model = Captioner("smile")
    loss = torch.compile(model, fullgraph=True, backend="eager")(*example()).loss
    with pytest.raises(RuntimeError, match="has no second derivative"):
        torch.autograd.grad(loss, model.layer.weight, create_graph=True)
