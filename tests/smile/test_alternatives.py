"""Each alternative against its formula, written out token by token in float64; gradients too."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from smile import Objective, mle_loss
from smile.alternatives import ALTERNATIVES
from smile.alternatives.gem import Gem
from smile.alternatives.truncation import LastMeans
from tests.smile import hidden_states
from tests.smile.hidden_states import HOW, IGNORE, compare

EOS = 3

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


def gem(beta, h):
    def loss(z, y, earlier):
        scaled = [math.exp(v.item() / beta) for v in z]
        found = 0
        for v in range(len(z)):
            share = scaled[v] / sum(scaled)
            if h == "logsigmoid":
                share /= 1 + math.exp(-0.01 * (z[v] - z[y]).item())
            found = found - share * (log_p(z, y) - log_p(z, v))
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
    ("dft", {}, weighed(lambda p: p)),
    ("tailr", {}, weighed(lambda p: min(max(p / (0.5 + 0.5 * p), 0.2), 1))),
    ("tailr", {"gamma": 0.1, "min_weight": 0}, weighed(lambda p: p / (0.1 + 0.9 * p))),
    ("mixce", {}, weighed(lambda p: 0.5 + 0.5 * p)),
    ("mixce", {"eta": 0.1}, weighed(lambda p: 0.1 + 0.9 * p)),
    ("mixce", {"eta": 0}, weighed(lambda p: p)),
    ("gem", {}, gem(0.7, "linear")),
    ("gem", {"beta": 1.3, "h": "logsigmoid"}, gem(1.3, "logsigmoid")),
    ("scalegrad", {}, scalegrad(0.2)),
    ("scalegrad", {"gamma": 0.8}, scalegrad(0.8)),
    ("truncation", {}, None),  # has tests of its own
]
IDS = [f"{name} {given}" for name, given, _ in CASES]
each_case = pytest.mark.parametrize(("name", "parameters", "formula"), CASES, ids=IDS)
each_formula = pytest.mark.parametrize(("name", "parameters", "formula"), CASES[:-1], ids=IDS[:-1])


def spec_of(name, parameters, weight=1.0):
    return {name: {"weight": weight, **parameters}}


def example():
    """Return logits of a small vocabulary, and labels that repeat, with padding and gaps."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(5, 8, 6, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(6, (5, 8))
    labels[0, 5:] = labels[1, 1:] = labels[2, :] = IGNORE
    labels[3, 0] = labels[3, 3] = IGNORE
    return logits, labels


def written_out(formula, logits, labels, segments=None):
    segments = torch.zeros_like(labels) if segments is None else segments
    losses = [[torch.zeros((), dtype=logits.dtype)] * labels.size(1) for _ in labels]
    for b, n in (labels != IGNORE).nonzero().tolist():
        same = (segments[b, :n] == segments[b, n]) & (labels[b, :n] != IGNORE)
        losses[b][n] = formula(logits[b, n], labels[b, n].item(), labels[b, :n][same].tolist())
    return torch.stack([torch.stack(row) for row in losses])


def test_every_alternative_has_its_formula():
    assert {name for name, *_ in CASES} == set(ALTERNATIVES)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"focal": {"gamma": -1}}, "'focal': gamma is -1.0; it must be 0 or more"),
        ({"tailr": {"gamma": 1.5}}, "gamma is 1.5; it must be from 0 to 1"),
        ({"tailr": {"min_weight": float("nan")}}, "min_weight is nan; it must be a number"),
        ({"mixce": {"eta": "half"}}, "eta is 'half'; it must be a number"),
        ({"mixce": {"eta": True}}, "eta is True; it must be a number"),
        ({"scalegrad": {"gamma": 0}}, "gamma is 0.0; it must be above 0, at most 1"),
        ({"gem": {"beta": 0}}, "beta is 0.0; it must be above 0"),
        ({"gem": {"h": "relu"}}, "h is 'relu'; it must be one of linear, logsigmoid"),
        ({"truncation": {"drop": 1}}, "drop is 1.0; it must be from 0, below 1"),
        ({"truncation": {"window": 2.5}}, "window is 2.5; it must be a whole number"),
        ({"truncation": {"window": 0}}, "window is 0; it must be from 1"),
        ({"selective_eos": {"eos_token_id": -1}}, "eos_token_id is -1; it must be an id"),
    ],
)
def test_a_wrong_parameter_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        Objective(spec)


@each_formula
def test_the_formula_and_its_gradient(name, parameters, formula):
    logits, labels = example()
    expected = written_out(formula, logits, labels)
    output = Objective(spec_of(name, parameters))(logits, labels, reduction="none")
    torch.testing.assert_close(output.loss, expected, rtol=1e-9, atol=1e-11)
    factors = torch.randn_like(expected)
    ours, theirs = (
        torch.autograd.grad((x * factors).sum(), logits)[0] for x in (output.loss, expected)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
    assert output.tokens == (labels != IGNORE).sum()


@each_formula
def test_the_mean_is_over_tokens_and_packed_captions_are_apart(name, parameters, formula):
    logits, labels = example()
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]).expand(5, -1)
    weights = torch.rand(5, 8, dtype=torch.float64)
    losses = written_out(formula, logits, labels, segments)
    labelled = labels != IGNORE
    expected = (losses * weights).sum() / weights[labelled].sum()
    output = Objective(spec_of(name, parameters, 0.5))(logits, labels, segments, weights)
    torch.testing.assert_close(output.loss, 0.5 * expected)
    torch.testing.assert_close(output.parts[name], expected.detach())


@each_case
@pytest.mark.parametrize("others", [{}, {"mle": 0.3, "smile": 0.4, "reverse": 0.2}])
def test_from_hidden_states_it_is_the_loss_of_logits(name, parameters, formula, others):
    objective = Objective({**others, **spec_of(name, parameters, 0.7)}, 0.1)
    for how in HOW.values():
        compare(objective, *hidden_states.example(), **how)


@each_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_no_more_than_half_precision_does(name, parameters, formula, dtype):
    inputs, labels = hidden_states.example(dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        compare(Objective(spec_of(name, parameters)), inputs, labels, rtol=0.05, atol=0.05)


@each_formula
def test_extreme_logits_have_finite_losses_and_gradients(name, parameters, formula):
    logits = torch.tensor([[[300.0, -300.0, 0.0, 0.0, 0.0]] * 2], requires_grad=True)
    labels = torch.tensor([[1, 0]])
    loss = Objective(spec_of(name, parameters))(logits, labels).loss
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite() and gradient.isfinite().all()
    inputs = [torch.eye(5)[None, :2].requires_grad_(), logits.detach()[0].T.repeat(1, 3)[:, :5]]
    inputs[1].requires_grad_()
    hidden = Objective(spec_of(name, parameters)).from_hidden(*inputs, None, labels)
    assert hidden.loss.isfinite()
    assert all(x.isfinite().all() for x in torch.autograd.grad(hidden.loss, inputs))


def test_the_end_of_a_caption_has_to_be_known():
    logits, labels = example()
    with pytest.raises(ValueError, match="give the id of the end token"):
        Objective("selective_eos")(logits, labels)
    theirs = Objective("selective_eos").with_tokens(0, EOS)
    given = Objective({"selective_eos": {"eos_token_id": EOS}}).with_tokens(0, 5)
    torch.testing.assert_close(theirs(logits, labels).loss, given(logits, labels).loss)


@pytest.mark.parametrize("h", ["linear", "logsigmoid"])
def test_gem_has_no_share_for_a_word_that_is_impossible(h):
    logits, labels = torch.randn(3, 7), torch.tensor([0, 2, 5])
    logits[:, 3] = float("-inf")
    without = torch.cat([logits[:, :3], logits[:, 4:]], 1)
    losses = Gem(h=h).losses(logits, labels)
    torch.testing.assert_close(losses, Gem(h=h).losses(without, torch.tensor([0, 2, 4])))


def means_of(losses, labels, segments):
    """Return each caption's mean loss and tokens: [(mean, [(row, position)])]."""
    captions = {}
    for b, n in (labels != IGNORE).nonzero().tolist():
        captions.setdefault((b, segments[b, n].item()), []).append((b, n))
    return [(sum(losses[at].item() for at in x) / len(x), x) for x in captions.values()]


@pytest.mark.parametrize(
    "window", [pytest.param(12, marks=pytest.mark.slow), 3]
)  # less than a batch
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("from_hidden", [False, True])
def test_truncation_drops_captions_of_the_highest_loss(packed, from_hidden, window):
    spec = {"mle": 0.2, "truncation": {"weight": 0.5, "window": window}, "smile": 0.3}
    objective = Objective(spec)
    history, dropped = [], 0
    for step in range(8):
        torch.manual_seed(step)
        inputs, labels = hidden_states.example()
        segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1]] if packed else [[0] * 7]).expand(5, -1)
        logits = F.linear(*inputs)
        losses = mle_loss(logits, labels, reduction="none")
        captions = means_of(losses, labels, segments)
        limit = math.inf
        if len(history) >= window:
            limit = torch.tensor(history[-window:], dtype=torch.float64).quantile(0.6).item()
        kept = [where for mean, where in captions if mean < limit]
        dropped += len(captions) - len(kept)
        history += [mean for mean, _ in captions]
        kept_losses = [losses[at] / len(where) for where in kept for at in where]
        truncated = sum(kept_losses, losses.new_zeros(())) / len(captions)
        others = Objective({"mle": 0.2, "smile": 0.3})(logits, labels, segments)
        expected = 0.5 * truncated + others.loss
        given, call = (logits,), objective
        if from_hidden:
            given, call = inputs, objective.from_hidden
        output = call(*given, labels, segments=segments if packed else None)
        torch.testing.assert_close(output.loss, expected)
        assert list(output.parts) == list(spec)
        torch.testing.assert_close(output.parts["truncation"], truncated.detach())
        torch.testing.assert_close(output.parts["smile"], others.parts["smile"])
        ours, theirs = (
            torch.autograd.grad(x, inputs, retain_graph=True) for x in (output.loss, expected)
        )
        torch.testing.assert_close(ours, theirs)
    assert dropped > 5


@pytest.mark.parametrize("drop", [0, 0.3, 0.4, 0.77])
@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_the_limit_of_truncation_is_the_quantile_of_a_full_window(size, drop):
    means, window = torch.randn(size), LastMeans(size)
    window.restore({"means": means, "seen": torch.tensor(size)})
    expected = float(np.quantile(means.double().numpy(), 1 - drop)) if drop else math.inf
    assert window.threshold(drop).item() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_what_truncation_has_seen_is_kept_in_a_checkpoint_and_of_training_alone():
    inputs, labels = hidden_states.example()
    spec = {"truncation": {"drop": 0.5, "window": 6}}
    first, second = Objective(spec), Objective(spec)
    with torch.no_grad():
        first.from_hidden(*inputs, labels)
    first.eval()(F.linear(*inputs), labels)
    assert first.state()["seen"] == 0
    first.train()
    for _ in range(3):
        first.from_hidden(*inputs, labels)
    assert first.state()["seen"] == 12  # one of the five rows has no label
    second.restore(first.state())
    here, there = (x.from_hidden(*inputs, labels).loss for x in (first, second))
    assert here == there != Objective(spec).from_hidden(*inputs, labels).loss
    whole = Objective(spec).from_hidden(*inputs, labels).loss
    assert first.eval().from_hidden(*inputs, labels).loss == whole  # nothing is dropped there
    with pytest.raises(ValueError, match="no window of 7 captions"):
        Objective({"truncation": {"window": 7}}).restore(first.state())
    assert Objective("mle").state() == {}
    assert Objective({"truncation": {"window": 1e3}}).state()["means"].shape == (1000,)  # YAML's
