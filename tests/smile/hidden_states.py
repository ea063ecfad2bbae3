"""Hidden states, a head and labels, and the two ways to an objective from them."""

from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from smile import alternatives
from smile.alternatives import ALTERNATIVES, random_words

IGNORE, EOS = -100, 3
END = {"eos_token_id": EOS}
SPECS = {  # every objective, and mixtures
    **{name: name for name in ("mle", "smile", "random", "reverse", *ALTERNATIVES)},
    "selective_eos": {"selective_eos": END},
    "subsets": {"random": 0.4, "smile": 0.3, "reverse": 0.2, "mle": 0.7},
    "all": {
        **{name: 0.1 + 0.1 * i for i, name in enumerate(("mle", "smile", "random", "reverse"))},
        **dict.fromkeys(ALTERNATIVES, 0.2),
        "selective_eos": {"weight": 0.3, **END},
    },
}
PACKED = {
    "segments": torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 5),
    "weights": torch.tensor([1.0, 2.0, 0.5, 0.0, 1.0]),
}
HOW = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "segments and weights": PACKED,
    "all": {**PACKED, "reduction": "none"},
}


def example(captions=5, length=7, vocabulary=23, width=6, dtype=torch.float64):
    """Return ([hidden, weight, bias], labels) with padding, gaps, and captions of 1 and 0 words."""
    hidden = torch.randn(captions, length, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, width, dtype=dtype, requires_grad=True)
    bias = torch.randn(vocabulary, dtype=dtype, requires_grad=True)
    labels = torch.randint(vocabulary, (captions, length))
    labels[0, 4:] = labels[1, 1:] = labels[2, :] = IGNORE
    labels[3, 0] = labels[3, 3] = IGNORE
    labels[4, 4] = labels[4, 1]
    return [hidden, weight, bias], labels


def from_logits(objective, inputs, labels, **how):
    torch.manual_seed(0)  # of the words that random subsetting samples
    return objective(F.linear(*inputs), labels, **how)


def from_hidden(objective, inputs, labels, **how):
    torch.manual_seed(0)
    return objective.from_hidden(*inputs, labels, **how)


WAYS = (from_logits, from_hidden)


def gradients(loss, inputs):
    """Return the gradients of a weighted sum of the loss's entries."""
    factors = torch.arange(3, 3 + loss.numel()).view_as(loss)
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    return torch.autograd.grad((loss * factors).sum(), wanted, retain_graph=True)


def compare(objective, inputs, labels, rtol=1e-10, atol=1e-12, **how):
    """Assert that both ways give equal outputs and gradients; return those of the fused loss."""
    expected, found = (way(objective, inputs, labels, **how) for way in WAYS)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    wanted, ours = (gradients(output.loss, inputs) for output in (expected, found))
    torch.testing.assert_close(ours, wanted, rtol=rtol, atol=atol)
    assert not any(x.requires_grad for output in (expected, found) for x in output.parts.values())
    return found, ours


def words_of_labels():
    """Let random subsetting sample words that depend on the label alone, not on its place."""

    def sample(labels, vocabulary, size, pad_token_id):
        words = (labels.unsqueeze(2).clamp(min=0) * 5 + 3 * torch.arange(size)) % vocabulary
        with patch.object(torch, "randint", return_value=words):
            return random_words(labels, vocabulary, size, pad_token_id)

    return patch.object(alternatives, "random_words", sample)


class LargestMade(TorchDispatchMode):
    """Records the size of the largest tensor that is created, except those of shapes `besides`."""

    def __init__(self, besides=()):
        super().__init__()
        self.elements, self.besides = 0, besides

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(made) if isinstance(x, Tensor)]
        sizes = [x.numel() for x in tensors if tuple(x.shape) not in self.besides]
        self.elements = max([self.elements, *sizes])
        return made
