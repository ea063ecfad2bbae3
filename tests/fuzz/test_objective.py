"""Losses and gradients against sums written out in float64, over wide ranges.

Ranges: 1 to 4 captions of 1 to 8 positions in a vocabulary of 1 to 30; logits normal times 0.01 to
10,000, some of them equal, some around -20,000, some alone 30,000 above the rest; some words
ruled out; in four dtypes; any labels ignored, from none to all; MLE with label smoothing 0 to 0.9,
SMILE and its ablations, with and without first_token_mle.
"""

import math
from unittest.mock import patch

import torch
from hypothesis import given
from hypothesis import strategies as st

from smile import Objective
from tests.fuzz.examples import fuzzed
from tests.smile.hidden_states import IGNORE

# Some units in the last place of what is computed in; of what a gradient is rounded to.
ROUNDING = {torch.float64: 1e-15, torch.float32: 3e-7}
HALF = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9}
LOWEST = -32500  # of a logit that does not rule out its word


@st.composite
def problems(draw):
    captions, length, vocabulary = (draw(st.integers(1, most)) for most in (4, 8, 30))
    words = st.integers(0, vocabulary - 1)
    label = draw(st.sampled_from([words, words | st.just(IGNORE), st.just(IGNORE)]))
    row = st.lists(label, min_size=length, max_size=length)
    labels = torch.tensor(draw(st.lists(row, min_size=captions, max_size=captions)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logits = torch.randn(captions, length, vocabulary, dtype=torch.float64, generator=generator)
    logits *= (scale := draw(st.sampled_from([0.0, 0.01, 1.0, 30.0, 10000.0])))
    if scale < 100:
        logits -= draw(st.sampled_from([0, 20000]))
    if draw(st.booleans()):
        logits[..., draw(words)] += 30000
    dtype = draw(st.sampled_from([*ROUNDING, *HALF]))
    # Written out of what the type can hold, so that only computing may differ.
    logits = logits.clamp(-32000, 60000).to(dtype)
    if draw(st.booleans()):  # words that the model rules out, but no label
        mask = draw(st.sampled_from([-math.inf, torch.finfo(dtype).min, -65504.0]))
        ruled_out = torch.rand(logits.shape, generator=generator) < 0.3
        logits = logits.masked_fill(
            ruled_out.scatter(2, labels.clamp(min=0)[..., None], False), mask
        )
    drawn = torch.randint(vocabulary, (captions, length, 3), generator=generator)
    pad = draw(st.none() | words)
    return logits, labels, drawn, pad


def written_out(name, logits, labels, drawn, pad, smoothing, first_token_mle):
    """Return the mean over labels, one token after another."""
    everything, losses = set(range(logits.size(2))), []
    for b, caption in enumerate(labels.tolist()):
        own, padding = {*caption} - {IGNORE}, {pad} if caption[-1] == IGNORE else set()
        first = first_token_mle
        for n, word in enumerate(caption):
            if word == IGNORE:
                continue
            subset = {
                "mle": everything,
                "smile": own,
                "random": (set(drawn[b, n].tolist()) - {pad}) | {word},
                "reverse": (everything - own - padding) | {word},
            }[name]
            z = logits[b, n]
            expected = z[word]
            if name == "mle" and smoothing:
                expected = (1 - smoothing) * z[word] + smoothing * z[z > LOWEST].mean()
            losses.append(z[[*(everything if first else subset)]].logsumexp(0) - expected)
            first = False
    return torch.stack(losses).mean() if losses else 0 * logits.sum()


@fuzzed(150)
@given(
    problems(),
    st.sampled_from(["mle", "smile", "random", "reverse"]),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 0.9]),
)
def test_each_objective_is_what_is_written_out(problem, name, first, smoothing):
    logits, labels, drawn, pad = problem
    exact, logits = (x.detach().requires_grad_() for x in (logits.double(), logits))
    expected = written_out(name, exact, labels, drawn, pad, smoothing, first and name != "mle")
    with patch.object(torch, "randint", return_value=drawn):
        loss = Objective(name, smoothing, first, pad_token_id=pad)(logits, labels).loss
    dtype, size = logits.dtype, max(1.0, logits.detach().where(logits > LOWEST, 0).abs().max())
    off = 4 * ROUNDING.get(dtype, ROUNDING[torch.float32]) * size
    assert loss.isfinite() and abs(loss.item() - expected.item()) <= off
    (wanted,), (found,) = (torch.autograd.grad(*x) for x in ((expected, exact), (loss, logits)))
    assert found.dtype == dtype and found.isfinite().all()
    # An error of the logits moves a probability by as much; the gradient is rounded to its type.
    assert (found.double() - wanted).abs().max() <= max(off, HALF.get(dtype, 0.0))
