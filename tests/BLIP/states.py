"""State dicts that are equal to the bit."""

import torch


def assert_equal(state, other):
    """Assert that two state dicts have the same names, dtypes and values."""
    assert state.keys() == other.keys()
    for key, value in state.items():
        assert value.dtype == other[key].dtype and torch.equal(value, other[key]), key
