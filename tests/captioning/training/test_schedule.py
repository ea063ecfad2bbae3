"""Learning rates, against formulas and torch's schedules."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from captioning.config import load_config
from captioning.models.build import captioner_from
from captioning.training.schedule import build_optimizer, scheduled_rate
from captioning.training.selection import count_plateaus
from tests.tiny import CLASSIC


@pytest.fixture
def config(scenes_config):
    given = ["init_lr=1.0", "max_epoch=4", "min_lr=0.1"]
    return lambda *overrides: load_config(scenes_config, [*given, *overrides])


def sgd():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


def test_blips_schedule_is_the_default_and_exponential_falls_by_lr_decay(config):
    chosen = config("init_lr=1e-5", "min_lr=0", "max_epoch=5")
    rates = [scheduled_rate(chosen, epoch, 999, 200, 3) for epoch in range(5)]
    expected = [1e-5, 9.045085e-6, 6.545085e-6, 3.454915e-6, 9.54915e-7]
    assert rates == pytest.approx(expected, rel=1e-6)
    chosen = config("warmup_steps=4", "warmup_lr=0.2")
    rates = [scheduled_rate(chosen, step // 5, step, 5, 3) for step in range(6)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 0.868198])
    chosen = config("lr_schedule=exponential", "lr_decay=0.5")
    rates = [scheduled_rate(chosen, epoch, 10 * epoch, 10, 9) for epoch in range(5)]
    assert rates == [1, 0.5, 0.25, 0.125, 0.1]


@pytest.mark.parametrize(
    ("keys", "lengths"),
    [
        (["lr_schedule=cosine_steps"], [32]),
        (["lr_schedule=cosine_restarts", "lr_cycle_growth=1", "lr_cycles=4"], [8, 8, 8, 8]),
        (["lr_schedule=cosine_restarts", "lr_cycle_growth=2", "lr_cycles=3"], [8, 16, 32]),
    ],
)
def test_cosines_over_steps_are_torchs_each_ending_at_its_lowest(config, keys, lengths):
    chosen = config(*keys, "warmup_steps=8")
    steps = (8 + sum(lengths)) // 4  # an epoch
    rates = [scheduled_rate(chosen, n // steps, n, steps, 0) for n in range(4 * steps)]
    assert rates[4] == 0.5  # half way through the warm-up
    del rates[:8]
    for length in lengths:
        optimizer = sgd()
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length - 1, eta_min=0.1)
        for _ in range(length):
            assert rates.pop(0) == pytest.approx(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
    assert rates == []


def test_cosines_without_room_end_at_the_lowest(config):
    only = config("lr_schedule=cosine_steps", "warmup_steps=39")
    assert scheduled_rate(only, 3, 39, 10, 0) == 0.1
    for cycles in range(1, 12):
        chosen = config("lr_schedule=cosine_restarts", f"lr_cycles={cycles}")
        rates = [scheduled_rate(chosen, n // 2, n, 2, 0) for n in range(8)]
        assert rates[-1] == pytest.approx(0.1), cycles
        assert sum(rate == pytest.approx(0.1) for rate in rates) == min(cycles, 8)


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=30), st.integers(0, 4))
def test_plateaus_are_those_of_torch(values, patience):
    optimizer = sgd()
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max", factor=0.5, patience=patience, threshold=0.0, min_lr=0.0, eps=0.0
    )
    for value in values:
        schedule.step(value)
    chosen = SimpleNamespace(monitor="Bleu_4", lr_patience=patience)
    validations = {epoch: {"Bleu_4": value} for epoch, value in enumerate(values)}
    assert 0.5 ** count_plateaus(chosen, validations) == optimizer.param_groups[0]["lr"]


def test_encoder_and_word_vectors_have_rates_of_their_own(scenes_config):
    rates = ["encoder_lr=1e-4", "embedding_lr=2e-2"]
    chosen = load_config(scenes_config, ["model=attn", *CLASSIC, *rates])
    captioner, _ = captioner_from(chosen, None)
    optimizer, shares = build_optimizer(captioner, chosen)
    assert shares == pytest.approx([1.0, 0.1, 20])
    rest, encoder, words = ([*map(id, group["params"])] for group in optimizer.param_groups)
    assert set(encoder) == set(map(id, captioner.encoder.network.parameters()))
    assert words == [id(captioner.decoder.embedding.weight)]
    assert sorted(rest + encoder + words) == sorted(map(id, captioner.parameters()))
