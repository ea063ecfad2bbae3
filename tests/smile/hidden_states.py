"""Hidden states, a head and labels, and the objective from them beside its definition on logits."""

import torch
import torch.nn.functional as F

IGNORE = -100
SPECS = [
    "mle",
    "smile",
    "random",
    "reverse",
    {"mle": 0.01, "smile": 0.99},
    {"reverse": 0.5, "mle": 0.5},
    {"random": 0.4, "smile": 0.3, "reverse": 0.2, "mle": 0.7},
]
PACKED = {
    "segments": torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 5),
    "weights": torch.tensor([1.0, 2.0, 0.5, 0.0, 1.0]),
}
CAPPED = {"scale": 0.5, "softcap": 2.0}
HOW = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "segments and weights": PACKED,
    "scale and cap": CAPPED,
}


def example(captions=5, length=7, vocabulary=23, width=6, dtype=torch.float64):
    """Return ([hidden, weight, bias], labels) with padding, gaps, and captions of 1 and 0 words."""
    hidden = torch.randn(captions, length, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, width, dtype=dtype, requires_grad=True)
    bias = torch.randn(vocabulary, dtype=dtype, requires_grad=True)
    labels = torch.randint(vocabulary, (captions, length))
    labels[0, 4:] = labels[1, 1:] = labels[2, :] = IGNORE
    labels[3, 0] = labels[3, 3] = IGNORE
    return [hidden, weight, bias], labels


def by_definition(objective, inputs, labels, scale=1.0, softcap=None, **how):
    torch.manual_seed(0)  # of the words that random subsetting samples
    logits = F.linear(*inputs) * scale
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    return objective(logits, labels, **how)


def fused(objective, inputs, labels, **how):
    torch.manual_seed(0)
    return objective.from_hidden(*inputs, labels, **how)


def gradients(loss, inputs):
    """Return the gradients of a weighted sum of the loss's entries."""
    factors = torch.arange(3, 3 + loss.numel()).view_as(loss)
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    return torch.autograd.grad((loss * factors).sum(), wanted, retain_graph=True)


def compare(objective, inputs, labels, rtol=1e-10, atol=1e-12, **how):
    """Assert that both ways give equal outputs and gradients; return those of the fused loss."""
    expected, found = (way(objective, inputs, labels, **how) for way in (by_definition, fused))
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    assert list(found.parts) == list(expected.parts)
    wanted, ours = (gradients(output.loss, inputs) for output in (expected, found))
    torch.testing.assert_close(ours, wanted, rtol=rtol, atol=atol)
    assert [x.dtype for x in ours] == [x.dtype for x in inputs if x is not None and x.requires_grad]
    assert not any(part.requires_grad for part in found.parts.values())
    return found, ours
