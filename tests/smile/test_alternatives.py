"""Each alternative against its formula, written out token by token in float64; gradients too."""

import math

import pytest
import torch

from smile import Objective
from smile.alternatives import ALTERNATIVES
from tests.smile.hidden_states import EOS, IGNORE, WAYS

# Each is (z of the position, its label, the caption's earlier labels) -> the loss of that token.


def selective_eos(z, y, earlier):
    return z[[v for v in range(len(z)) if v != EOS or y == EOS]].logsumexp(0) - z[y]


def unlikelihood(alpha):
    def loss(z, y, earlier):
        log_p = z.log_softmax(0)
        terms = [torch.log(torch.clamp(1 - log_p[c].exp(), min=1e-5)) for c in {*earlier} - {y}]
        return -log_p[y] - alpha * sum(terms)

    return loss


def weighed(weight):
    def loss(z, y, earlier):
        log_p = z.log_softmax(0)[y]
        return -weight(math.exp(log_p.item())) * log_p

    return loss


def gem(beta):
    def loss(z, y, earlier):
        q = (z.detach() / beta).softmax(0)
        return -sum(q[v] * (z[y] - z[v]) for v in range(len(z)))

    return loss


def scalegrad(gamma):
    def loss(z, y, earlier):
        scale = z.new_tensor([1 if v in earlier else gamma for v in range(len(z))])
        scaled = z.softmax(0) * scale
        return -torch.log(scaled[y] / scaled.sum() + 1e-8)

    return loss


CASES = [
    ("selective_eos", {"eos_token_id": EOS}, selective_eos),
    ("unlikelihood", {}, unlikelihood(1.0)),
    ("unlikelihood", {"alpha": 0.3}, unlikelihood(0.3)),
    ("focal", {}, weighed(lambda p: (1 - p) ** 2)),
    ("focal", {"gamma": 0}, weighed(lambda p: 1)),
    ("dft", {}, weighed(lambda p: p)),
    ("tailr", {}, weighed(lambda p: min(max(p / (0.5 + 0.5 * p), 0.2), 1))),
    ("tailr", {"gamma": 0.1, "min_weight": 0}, weighed(lambda p: p / (0.1 + 0.9 * p))),
    ("tailr", {"gamma": 0}, weighed(lambda p: 1)),
    ("mixce", {}, weighed(lambda p: 0.5 + 0.5 * p)),
    ("mixce", {"eta": 0.1}, weighed(lambda p: 0.1 + 0.9 * p)),
    ("gem", {}, gem(0.7)),
    ("gem", {"beta": 1.3}, gem(1.3)),
    ("scalegrad", {}, scalegrad(0.2)),
    ("scalegrad", {"gamma": 0.8}, scalegrad(0.8)),
]


@pytest.mark.parametrize(("name", "parameters", "formula"), CASES)
def test_the_formula_and_its_gradient(name, parameters, formula):
    logits = (3 * torch.randn(5, 8, 6, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(6, (5, 8))
    labels[0, 5:] = labels[1, 1:] = labels[2, :] = labels[3, 0] = labels[3, 3] = IGNORE
    output = Objective({name: {"weight": 0.5, **parameters}})(logits, labels, reduction="none")
    scored, expected = labels != IGNORE, []
    for b, n in scored.nonzero().tolist():
        earlier = labels[b, :n][scored[b, :n]].tolist()
        expected.append(formula(logits[b, n], labels[b, n].item(), earlier))
    expected = torch.zeros_like(output.loss).masked_scatter(scored, torch.stack(expected))
    torch.testing.assert_close(output.parts[name], expected.detach(), rtol=1e-9, atol=1e-11)
    factors = torch.randn_like(expected)
    ours, theirs = (
        torch.autograd.grad((x * factors).sum(), logits)[0] for x in (output.loss, expected / 2)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("name", "parameters"), [case[:2] for case in CASES])
def test_extreme_logits_have_finite_losses_and_gradients(name, parameters):
    logits = torch.tensor([[300.0, -300.0, 0, 0, 0, 0]] * 2)
    inputs = [torch.eye(2)[None], logits.T, torch.tensor([0.0] * 5 + [-1e30])]
    inputs = [x.requires_grad_() for x in inputs]
    for way in WAYS:
        loss = way(Objective({name: parameters}), inputs, torch.tensor([[1, 0]])).loss
        gradients = torch.autograd.grad(loss, inputs)
        assert loss.isfinite() and all(x.isfinite().all() for x in gradients)


def test_every_alternative_has_its_formula():
    assert {name for name, *_ in CASES} == {*ALTERNATIVES}
