"""Marks of single cases."""

import pytest


def slow(*values):
    """Return a case of a parametrized test that the quick run leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow)
