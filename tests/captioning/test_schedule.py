"""The learning rate against the values of the formula worked out by hand."""

import pytest

from captioning.schedule import learning_rate


def test_one_value_an_epoch_from_init_towards_min():
    rates = [learning_rate(epoch, 999, 5, 1e-5, 0.0) for epoch in range(5)]
    expected = [1e-5, 9.045085e-6, 6.545085e-6, 3.454915e-6, 9.54915e-7]
    assert rates == pytest.approx(expected, rel=1e-6)
    assert learning_rate(2, 0, 4, 3.0, 1.0) == pytest.approx(2.0)


def test_warm_up_is_linear_in_steps():
    rates = [
        learning_rate(0, step, 5, 1.0, 0.0, warmup_steps=4, warmup_lr=0.2) for step in range(6)
    ]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
