"""A model over several devices: a batch lies where the model begins, and the loss at its head."""

import pytest
import torch

from smile.hf.forward import total_loss
from smile.objective import ObjectiveOutput

fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
BEGIN, END = torch.device("cuda:0"), torch.device("cuda:1")


def a_batch():
    """Labels and their number on the first of two devices, which need not be there."""
    return torch.ones(2, 6, dtype=torch.long, device=BEGIN), torch.tensor(7, device=BEGIN)


def test_the_number_of_labels_may_be_on_another_device():
    with fake_tensor.FakeTensorMode():
        items, loss = a_batch()[1], torch.ones((), device=END)
        with pytest.raises(RuntimeError, match="device"):
            loss / items
        assert total_loss(ObjectiveOutput(loss, {}, loss), items, None).device == END


def test_parts_are_logged_of_any_device(tmp_path):
    parts = pytest.importorskip("tests.smile.trainer_parts")
    trainer = parts.make(parts.SmileTrainer, tmp_path, objective=parts.MIXTURE)
    with fake_tensor.FakeTensorMode():
        labels, items = a_batch()
        found = {name: torch.ones((), device=END) for name in ("mle", "smile")}
        trainer._inner._smile.parts = {**found, "aux_loss": torch.ones((), device=BEGIN)}
        trainer._keep({"labels": labels, "segments": labels}, 1, items)
        sums = trainer._trained.sums
        assert {name: value.device for name, value in sums.items()} == {
            **{"loss_mle": END, "loss_smile": END, "aux_loss": BEGIN}
        }
        with pytest.raises(fake_tensor.DataDependentOutputException):  # it is read, of one device
            trainer._trained.means()
