"""Self-critical training: its expected gradient, and its runs."""

import itertools
import math
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from captioning.rewards.cider import CiderD
from captioning.runtime.errors import UserError
from captioning.training.self_critical import SelfCritical
from decoding import Generated
from smile import ObjectiveOutput
from tests.programs import raises_line
from tests.tiny import log_of

END, WORDS, LONGEST = 0, 3, 3
GIVEN = ["reward={facts: 1.0, cider: 0.5}", "facts_file=scenes.json", "max_tokens=12"]
GIVEN += ["metrics=[length]", "log_every=1", "reward_samples=3", "max_epoch=1"]


class Toy(nn.Module):
    """A table of logits by the previous word. The test chooses the sampled captions (`dealt`)."""

    tokenizer = SimpleNamespace(end=END)

    def __init__(self, dealt=()):
        super().__init__()
        made = torch.Generator().manual_seed(1)
        self.table = nn.Parameter(torch.randn(WORDS + 1, WORDS, generator=made).double())
        self.dealt = [*dealt]

    def encode(self, image):
        return image

    def forward(self, image, captions):
        loss = torch.tensor(5.0, dtype=torch.float64)
        return ObjectiveOutput(loss, {"mle": loss}, torch.tensor(1))

    def generate_from(self, encoded, settings):
        ids = torch.tensor([self.dealt if settings.sample else [self.greedy(settings)]])
        texts = [[" ".join(map(str, row)) for row in of_image] for of_image in ids.tolist()]
        return Generated(texts, ids, torch.zeros(ids.shape[:2]))

    def greedy(self, settings):
        assert settings.num_beams == 1
        words, before = [], WORDS
        while len(words) < LONGEST and END not in words:
            before = int(self.table[before].argmax())
            words.append(before)
        return words + [END] * (LONGEST - len(words))

    def log_likelihoods(self, encoded, ids, temperature):
        before = torch.nn.functional.pad(ids, (1, -1), value=WORDS)
        steps = (self.table[before] / temperature).log_softmax(-1)
        logprobs = steps.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        return logprobs.masked_fill((before == END).cumsum(-1) > 0, 0.0)


def worth_of(text):
    """A reward that differs for every caption."""
    return math.sin(sum(ord(c) ** n for n, c in enumerate(text)))


def learner(toy, **changed):
    """Return the learner of a reward on two samples without an objective, and the reward."""
    given = {"reward": {"worth": 1.0}, "reward_samples": 2, "reward_temperature": 1.0}
    given |= {"reward_baseline": "others", "objective": None}
    settings = SimpleNamespace(**{**given, "max_tokens": LONGEST, "language": "en", **changed})
    worth = Mock(
        side_effect=lambda _, said: np.array([[worth_of(s.text) for s in g] for g in said])
    )
    return SelfCritical(toy, settings, {"worth": worth}), worth


def test_a_reward_knows_which_captions_came_to_their_end():
    toy = Toy([[1, 2, 1], [1, 2, END], [END] * 3, [2, 2, 2]])
    learns, worth = learner(toy, reward_samples=4)
    output = learns(None, [[""]], [0])
    [captions] = worth.call_args[0][1]
    assert [caption.ended for caption in captions] == [False, True, True, False]
    assert list(output.parts) == ["reward", "baseline", "length"]  # a single reward is logged once
    # The baseline of a caption is the mean reward of the others.
    torch.testing.assert_close(output.parts["baseline"], output.parts["reward"])
    learns, _ = learner(toy, reward_samples=4, objective="mle")
    added = learns(None, [[""]], [0])
    torch.testing.assert_close(added.loss, output.loss + 5)
    assert added.parts["mle"] == 5


@pytest.mark.parametrize("baseline", ["others", "greedy"])
def test_the_expected_gradient_is_that_of_all_captions_enumerated(baseline):
    """The gradients of all pairs of samples, weighted by probability, against the formula."""
    toy, changed = Toy(), {"reward_temperature": 1.3, "reward_baseline": baseline}
    learns, _ = learner(toy, reward={"worth": 2.0}, **changed)
    captions = []  # all of at most LONGEST words, padded with END
    for words in itertools.product(range(WORDS), repeat=LONGEST):
        cut = words.index(END) if END in words else LONGEST
        if all(word == END for word in words[cut:]):
            captions.append([*words])
    assert len(captions) == 1 + 2 + 4 + 8

    logp = toy.log_likelihoods(None, torch.tensor([captions]), 1.3).sum(-1)[0]
    assert logp.exp().sum().item() == pytest.approx(1)
    worth = [2 * worth_of(" ".join(map(str, words))) for words in captions]
    value = (logp.exp() * torch.tensor(worth, dtype=torch.float64)).sum()
    (expected,) = torch.autograd.grad(-value, toy.table)

    found, p = torch.zeros_like(toy.table), logp.detach().exp()
    for a, b in itertools.product(range(len(captions)), repeat=2):
        toy.dealt = [captions[a], captions[b]]
        (gradient,) = torch.autograd.grad(learns(None, [[""]], [0]).loss, toy.table)
        found += p[a] * p[b] * gradient
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert expected.abs().max() > 0.01


@pytest.mark.slow
def test_a_run_learns_what_is_rewarded(run):
    given = ["objective=", "init_lr=1e-2", "max_epoch=12", "lr_schedule=exponential"]
    given += ["reward_samples=8"]
    steps = log_of(run(*given, "eval_every=12").run().folder, "step")
    means = [np.mean([line["reward"] for line in part]) for part in (steps[:6], steps[-6:])]
    assert means[1] > means[0] + 0.5
    for line in steps:
        assert line["reward"] == pytest.approx(line["facts"] + 0.5 * line["cider"], abs=1e-5)
        assert line.keys() >= {"baseline", "length", "loss"} and "mle" not in line


@pytest.mark.slow
def test_under_autocast_the_decoder_learns_too(run):
    """Autocast caches casts of weights without gradient while captions are sampled."""
    settings = ["precision=bf16", "objective="]
    before = run(*settings, folder="begun").set_up().step.learner.state_dict()
    found = run(*settings).run().step.learner.named_parameters()
    assert [n for n, p in found if torch.equal(p, before[n])] == []


def test_a_reward_that_is_not_finite_stops_the_run(run, monkeypatch):
    def spoil(step, batches, number):
        if number == 1:
            values = np.full((8, 3), math.nan)
            monkeypatch.setattr(CiderD, "__call__", lambda *_: values)

    tuning = run()
    tuning.before_step = spoil
    with raises_line(UserError, "remove a term from", start="the reward is not finite at step 2"):
        tuning.run()
    assert (tuning.folder / "checkpoint_00_step00000001.pth").exists()
