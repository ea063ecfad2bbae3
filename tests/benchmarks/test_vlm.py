"""The benchmark of a vision-language model's step: its contenders do the same work."""

import pytest

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from benchmarks.vlm import OWN, TINY, gradient_bytes, step, write


def test_our_mle_is_the_models_own_loss(tmp_path):
    write(str(tmp_path), TINY.V)
    own, ours, smile = (step(name, TINY, str(tmp_path))() for name in (OWN, "MLE", "SMILE"))
    assert own == pytest.approx(ours) and own != pytest.approx(smile)
    assert gradient_bytes(str(tmp_path)) > 2 * 4 * 96 * TINY.V  # words in, and words out
