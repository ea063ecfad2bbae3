"""Loss truncation step by step beside a list of the last means."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from smile import Objective, mle_loss
from smile.alternatives.truncation import LastMeans
from tests.smile.hidden_states import IGNORE
from tests.smile.hidden_states import example as hidden_states


def means_of(losses, labels, segments):
    """The mean loss of each caption by hand, with its tokens: [(mean, [(row, position)])]."""
    captions = {}
    for b, n in (labels != IGNORE).nonzero().tolist():
        captions.setdefault((b, segments[b, n].item()), []).append((b, n))
    return [
        (sum(losses[at].item() for at in where) / len(where), where) for where in captions.values()
    ]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("from_hidden", [False, True])
def test_truncation_drops_captions_of_the_highest_loss(packed, from_hidden):
    """Step by step beside a list of the last means; another loss of the mixture drops nothing."""
    spec = {"mle": 0.2, "truncation": {"weight": 0.5, "drop": 0.4, "window": 12}, "smile": 0.3}
    objective = Objective(spec)
    history, dropped = [], 0
    for step in range(8):
        torch.manual_seed(step)
        inputs, labels = hidden_states()
        segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1]] if packed else [[0] * 7]).expand(5, -1)
        logits = F.linear(*inputs)
        losses = mle_loss(logits, labels, reduction="none")
        captions = means_of(losses, labels, segments)
        limit = math.inf
        if len(history) >= 12:
            limit = torch.tensor(history[-12:], dtype=torch.float64).quantile(0.6).item()
        kept = [where for mean, where in captions if mean < limit]
        dropped += len(captions) - len(kept)
        history += [mean for mean, _ in captions]
        truncated = sum(losses[at] / len(where) for where in kept for at in where) / len(captions)
        others = Objective({"mle": 0.2, "smile": 0.3})(logits, labels, segments)
        expected = 0.5 * truncated + others.loss
        given = (*inputs, labels) if from_hidden else (logits, labels)
        call = objective.from_hidden if from_hidden else objective
        output = call(*given, segments=segments if packed else None)
        torch.testing.assert_close(output.loss, expected)
        assert list(output.parts) == list(spec)
        torch.testing.assert_close(output.parts["truncation"], truncated.detach())
        torch.testing.assert_close(output.parts["smile"], others.parts["smile"])
        ours, theirs = (
            torch.autograd.grad(x, inputs, retain_graph=True) for x in (output.loss, expected)
        )
        torch.testing.assert_close(ours, theirs)
    assert dropped > 5


def test_a_batch_wider_than_truncations_window():
    """The last captions that are there, whatever is behind them; a whole number as YAML has it."""
    window = LastMeans(2)
    for _ in range(2):
        window.add(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, True, False]))
    assert window.seen == 4 and sorted(window.state()["means"].tolist()) == [1.0, 2.0]
    window.add(torch.tensor([5.0, 6.0, 7.0]), torch.tensor([True, True, True]))
    assert window.seen == 6 and sorted(window.state()["means"].tolist()) == [6.0, 7.0]
    assert Objective({"truncation": {"window": 1e3}}).state()["means"].shape == (1000,)


@pytest.mark.parametrize("drop", [0, 0.3, 0.4, 0.77])
@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_the_limit_of_truncation_is_the_quantile_of_a_full_window(size, drop):
    means, window = torch.randn(size, dtype=torch.float64).float(), LastMeans(size)
    window.add(means[: size - 1], torch.ones(size - 1, dtype=torch.bool))
    assert window.threshold(drop) == math.inf
    # Checkpoints of before have them in float64.
    window.restore({"means": means.double(), "seen": torch.tensor(size)})
    expected = float(np.quantile(means.double().numpy(), 1 - drop))
    assert window.threshold(drop).item() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_what_truncation_has_seen_is_kept_in_a_checkpoint_and_of_training_alone():
    inputs, labels = hidden_states()
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
