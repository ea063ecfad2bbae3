"""What mutations replace is in the code."""

import ast

import pytest

from tests.soak.mutations import read_mutations


@pytest.mark.parametrize("mutation", read_mutations(), ids=lambda mutation: mutation.title)
def test_its_text_is_in_the_code_once(repository, mutation):
    whole = (repository / mutation.path).read_text()
    assert whole.count(mutation.old) == 1
    ast.parse(whole.replace(mutation.old, mutation.new))
