"""A label that the head has no word for is told in one line."""

import pytest
import torch

from smile import (
    OBJECTIVES,
    Objective,
    SmileLoss,
    mle_loss,
    random_subset_loss,
    reverse_subset_loss,
    smile_loss,
)

LOGITS = torch.zeros(2, 3, 8)
WORDS = torch.zeros(2, 3, 4, dtype=torch.int64)
LOSSES = {
    "mle": mle_loss,
    "smile": smile_loss,
    "module": lambda *given, **named: SmileLoss(**named)(*given),
    "reverse": reverse_subset_loss,
    "random": lambda *given, **named: random_subset_loss(*given, WORDS, **named),
    **{f"Objective {name}": lambda *g, name=name: Objective(name)(*g).loss for name in OBJECTIVES},
    "from hidden": lambda logits, labels: (
        Objective("smile").from_hidden(logits, torch.zeros(8, 8), None, labels).loss
    ),
}


@pytest.mark.parametrize("wrong", [8, 30524, -1])
@pytest.mark.parametrize("name", LOSSES)
def test_an_id_beyond_the_head_is_one_line(name, wrong):
    labels = torch.tensor([[1, 2, -100], [3, wrong, 7]])
    with pytest.raises(ValueError, match="label") as error:
        LOSSES[name](LOGITS, labels)
    assert str(error.value) == (
        f"the label at caption 1, position 1 is {wrong}, but the vocabulary has 8 tokens (from 0) "
        "and ignore_index is -100"
    )


@pytest.mark.parametrize("name", ["mle", "smile", "module", "reverse", "random"])
def test_what_is_ignored_may_be_any_id(name):
    labels = torch.tensor([[1, 2, 99], [3, 99, 7]])
    assert LOSSES[name](LOGITS, labels, ignore_index=99).isfinite()
    with pytest.raises(ValueError, match="position 2 is 99, but the vocabulary has 8 tokens"):
        LOSSES[name](LOGITS, labels)
