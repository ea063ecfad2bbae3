"""What validations have found: plateaus as torch counts them, the best, and when to stop."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from captioning.training.validation_history import count_plateaus, count_since_best, metric_values


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(0, 4))
def test_plateaus_are_those_of_torch(values, patience):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, mode="max", factor=0.5, patience=patience, threshold=0.0, min_lr=0.0, eps=0.0
    )
    for value in values:
        schedule.step(value)
    assert 0.5 ** count_plateaus(values, patience) == optimiser.param_groups[0]["lr"]


def test_since_the_best():
    assert [count_since_best(v) for v in ([], [1], [1, 2], [2, 1, 2], [0, 3, 1, 1])] == [
        0,
        0,
        0,
        2,
        2,
    ]


@pytest.fixture
def folder(tmp_path):
    scores = {0: (0.2, 0.5), 2: (0.3, 0.1), 3: (None, 0.9), 4: (0.1, 0.6)}
    for epoch, (bleu, cider) in scores.items():
        path = tmp_path / "result" / f"val_epoch{epoch:02d}" / "metrics.json"
        path.parent.mkdir(parents=True)
        metrics = {"CIDEr": {"value": cider}}
        if bleu is not None:
            metrics["Bleu_4"] = {"value": bleu}
        path.write_text(json.dumps({"metrics": metrics}))
    return tmp_path


def test_what_is_monitored_of_the_epochs_that_have_it(folder):
    assert metric_values(folder, 0, "Bleu_4") == []
    assert metric_values(folder, 3, "Bleu_4") == [0.2, 0.3]
    assert metric_values(folder, 9, "Bleu_4") == [0.2, 0.3, 0.1]
    assert metric_values(folder, 9, "Bleu_4 - CIDEr") == pytest.approx([-0.3, 0.2, -0.5])
