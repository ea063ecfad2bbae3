"""The benchmark of a vision-language model's step: its contenders do the same work."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from benchmarks.vlm import OWN, TINY, step, write


def test_our_mle_is_the_models_own_loss(tmp_path):
    folder, cpu = str(tmp_path), torch.device("cpu")
    write(folder, TINY.V)
    own, ours, smile = (step(name, TINY, folder, cpu)() for name in (OWN, "MLE", "SMILE"))
    assert own == pytest.approx(ours) and own != pytest.approx(smile)
