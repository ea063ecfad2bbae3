"""Contenders do the same work. tests/benchmarks/test_measure.py runs the other topics."""

import shutil
import sys

import pytest
import torch

import smile
from benchmarks import captioning, decoding, training
from benchmarks.objective import (
    LIBRARY_COMPARISON,
    OBJECTIVES,
    Row,
    build_work,
    contender_losses,
    library_losses,
)
from benchmarks.training import CPU, CPU_BATCH, Training, random_captions, random_images


@pytest.mark.slow
def test_a_compiled_copy_takes_part_on_a_gpu(needs_peer, quick_compiler):
    row = captioning.Captioners(True, CPU).measure(1, "fp32", 3, 6, compiled=True)
    assert "compiled" in row["contenders"] and quick_compiler.frame_count == 2


def test_the_topic_of_decoding_measures_every_method_beside_plain_search(quick_rows):
    rows = quick_rows("decoding")
    assert list(rows) == [
        f"batch {batch}, length {length}" for batch in (2, 3) for length in (6, 8)
    ]
    for row in rows.values():
        assert row["peer"] == "plain" and set(row["contenders"]) == {*decoding.METHODS, "mmi"}


@pytest.mark.parametrize(
    ("name", "contenders"),
    [
        *((name, ("from hidden states", "naive")) for name in OBJECTIVES),
        *((LIBRARY_COMPARISON, ("our MLE", library)) for library in library_losses(CPU)),
    ],
)
def test_contenders_compute_the_same_objective(name, contenders):
    if contenders[1].startswith("cut-cross-entropy") and shutil.which("c++") is None:
        pytest.skip("cut-cross-entropy is compiled, and there is no C++ compiler")
    ours, theirs = (
        [x.clone() for x in build_work(who, Row(CPU, None, name))()] for who in contenders
    )
    assert len(ours) == (3 if name == LIBRARY_COMPARISON else 4)
    assert ours[2].shape == (50, 8)
    torch.testing.assert_close(ours, theirs)


OTHER = """
class Objective:
    def __init__(self, spec, label_smoothing):
        if spec != "mle":
            raise ValueError(spec)
        self.spec, self.label_smoothing = spec, label_smoothing

    def from_hidden(self, *inputs):
        from smile.later import compute

        return compute(self, *inputs)
"""
LATER = """
from torch.nn import functional as F
from types import SimpleNamespace

def compute(objective, hidden, weight, bias, labels):
    logits = F.linear(hidden, weight, bias).flatten(0, 1)
    options = {"label_smoothing": objective.label_smoothing}
    return SimpleNamespace(loss=F.cross_entropy(logits, labels.flatten(), **options))
"""


def test_the_package_of_another_checkout_takes_part_where_it_has_the_objective(tmp_path):
    package = tmp_path / "smile"
    package.mkdir()
    (package / "__init__.py").write_text(OTHER)
    (package / "later.py").write_text(LATER)
    row = Row(CPU, tmp_path, "MLE")
    found = [
        [x.clone() for x in build_work(who, row)()]
        for who in (f"that of {tmp_path}", "from hidden states")
    ]
    torch.testing.assert_close(*found)
    assert "later" not in vars(smile) and "smile.later" not in sys.modules
    assert smile is sys.modules["smile"]
    assert f"that of {tmp_path}" not in contender_losses(row._replace(name="SMILE"))


def test_both_train_the_same_parameters_by_the_same_loss(needs_peer):
    both = Training(tiny=True, with_peer=True)
    both.ours.eval()
    both.theirs.eval()
    image, texts = random_images(both.ours, CPU_BATCH), random_captions(True, CPU_BATCH, 1)
    names = (training.OURS, training.THEIRS)
    for _ in range(2):
        torch.testing.assert_close(*(both.loss(name, image, texts) for name in names))
        for name in names:
            both.step(name, autocast=False)()
    weight = both.ours.text_decoder.bert["embeddings"].word_embeddings.weight
    assert any(weight is parameter for parameter in both.theirs.parameters())
    assert all(state["step"] == 4 for state in both.our_optimizer.state.values())
