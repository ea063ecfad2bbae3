"""The code that mutations.py replaces is there, and the result is valid."""

import ast

import pytest

from tests.soak.broken_promises import MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.title)
def test_its_text_is_in_the_code_once(repository, mutation):
    whole = (repository / mutation.path).read_text()
    assert whole.count(mutation.old) == 1
    ast.parse(whole.replace(mutation.old, mutation.new))
