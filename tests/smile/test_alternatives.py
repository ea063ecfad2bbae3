"""Each alternative against its formula, written out token by token in float64; gradients too."""

import math

import pytest
import torch

from smile import Objective
from smile.alternatives import ALTERNATIVES
from tests.smile.hidden_states import EOS, IGNORE, WAYS

# Each is (z of the position, its label, the caption's earlier labels) -> the loss of that token.


def log_p(z, y):
    return z[y] - torch.log(sum(torch.exp(v) for v in z))


def selective_eos(z, y, earlier):
    if y == EOS:
        return -log_p(z, y)
    return -z[y] + torch.log(sum(torch.exp(v) for i, v in enumerate(z) if i != EOS))


def unlikelihood(alpha):
    def loss(z, y, earlier):
        found = -log_p(z, y)
        for c in set(earlier) - {y}:
            found = found - alpha * torch.log(torch.clamp(1 - torch.exp(log_p(z, c)), min=1e-5))
        return found

    return loss


def weighed(weight):
    def loss(z, y, earlier):
        p = math.exp(log_p(z, y).item())
        return -weight(p) * log_p(z, y)

    return loss


def gem(beta):
    def loss(z, y, earlier):
        scaled = [math.exp(v.item() / beta) for v in z]
        found = 0
        for v in range(len(z)):
            found = found - scaled[v] / sum(scaled) * (log_p(z, y) - log_p(z, v))
        return found

    return loss


def scalegrad(gamma):
    def loss(z, y, earlier):
        p = torch.exp(z) / torch.exp(z).sum()
        scaled = torch.stack([p[v] * (1 if v in earlier else gamma) for v in range(len(z))])
        return -torch.log(scaled[y] / scaled.sum() + 1e-8)

    return loss


CASES = [
    ("selective_eos", {"eos_token_id": EOS}, selective_eos),
    ("unlikelihood", {}, unlikelihood(1.0)),
    ("unlikelihood", {"alpha": 0.3}, unlikelihood(0.3)),
    ("unlikelihood", {"alpha": 0}, unlikelihood(0)),
    ("focal", {}, weighed(lambda p: (1 - p) ** 2)),
    ("focal", {"gamma": 0.5}, weighed(lambda p: (1 - p) ** 0.5)),
    ("focal", {"gamma": 0}, weighed(lambda p: 1)),
    ("dft", {}, weighed(lambda p: p)),
    ("tailr", {}, weighed(lambda p: min(max(p / (0.5 + 0.5 * p), 0.2), 1))),
    ("tailr", {"gamma": 0.1, "min_weight": 0}, weighed(lambda p: p / (0.1 + 0.9 * p))),
    ("tailr", {"gamma": 0}, weighed(lambda p: 1)),
    ("mixce", {}, weighed(lambda p: 0.5 + 0.5 * p)),
    ("mixce", {"eta": 0.1}, weighed(lambda p: 0.1 + 0.9 * p)),
    ("mixce", {"eta": 0}, weighed(lambda p: p)),
    ("gem", {}, gem(0.7)),
    ("gem", {"beta": 1.3}, gem(1.3)),
    ("scalegrad", {}, scalegrad(0.2)),
    ("scalegrad", {"gamma": 0.8}, scalegrad(0.8)),
]
IDS = [f"{name} {given}" for name, given, _ in CASES]
each_case = pytest.mark.parametrize(("name", "parameters", "formula"), CASES, ids=IDS)


def written_out(formula, logits, labels):
    losses = [[torch.zeros((), dtype=logits.dtype)] * labels.size(1) for _ in labels]
    for b, n in (labels != IGNORE).nonzero().tolist():
        earlier = labels[b, :n][labels[b, :n] != IGNORE].tolist()
        losses[b][n] = formula(logits[b, n], labels[b, n].item(), earlier)
    return torch.stack([torch.stack(row) for row in losses])


def test_every_alternative_has_its_formula():
    assert {name for name, *_ in CASES} == set(ALTERNATIVES)


@each_case
def test_the_formula_and_its_gradient(name, parameters, formula):
    logits = (3 * torch.randn(5, 8, 6, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(6, (5, 8))
    labels[0, 5:] = labels[1, 1:] = labels[2, :] = labels[3, 0] = labels[3, 3] = IGNORE
    expected = written_out(formula, logits, labels)
    objective = Objective({name: {"weight": 0.5, **parameters}})
    output = objective(logits, labels, reduction="none")
    torch.testing.assert_close(output.parts[name], expected.detach(), rtol=1e-9, atol=1e-11)
    factors = torch.randn_like(expected)
    ours, theirs = (
        torch.autograd.grad((x * factors).sum(), logits)[0] for x in (output.loss, expected / 2)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@each_case
def test_extreme_logits_have_finite_losses_and_gradients(name, parameters, formula):
    logits, labels = torch.tensor([[300.0, -300.0, 0, 0, 0, float("-inf")]] * 2), [[1, 0]]
    inputs = [torch.eye(2)[None], logits.T.nan_to_num(neginf=0), torch.tensor([0.0] * 5 + [-1e30])]
    inputs = [x.requires_grad_() for x in inputs]
    for way in WAYS:
        loss = way(Objective({name: parameters}), inputs, torch.tensor(labels)).loss
        gradients = torch.autograd.grad(loss, inputs)
        assert loss.isfinite() and all(x.isfinite().all() for x in gradients)
