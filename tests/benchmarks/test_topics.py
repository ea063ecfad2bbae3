"""Each topic in its smallest form, and that its contenders do the same work."""

import shutil

import pytest
import torch

from benchmarks import captioning, decoding, training
from benchmarks.objective import (
    LIBRARY_COMPARISON,
    MAIN_OBJECTIVES,
    OBJECTIVES,
    TINY_SIZES,
    build,
    libraries,
)
from benchmarks.training import CPU, CPU_BATCH, Training, random_captions, random_images
from BLIP.kernels.int8_linear import has_int8


def test_captioning(needs_peer, quick_rows):
    rows = quick_rows("captioning")
    assert len(rows) == 8
    int8 = {"int8"} if has_int8(CPU) else set()
    for name, row in rows.items():
        ours = {"ours"} | (int8 if name.startswith("fp32") else set())
        assert set(row["contenders"]) == {*ours, "transformers"} and row["peer"] == "transformers"


def test_a_compiled_copy_takes_part_on_a_gpu(needs_peer, quick_compiler):
    row = captioning.Captioners(True, CPU).measure(1, "fp32", 3, 6, compiled=True)
    assert "compiled" in row["contenders"] and quick_compiler.frame_count == 2


def test_decoding(quick_rows):
    rows = quick_rows("decoding")
    assert list(rows) == [
        f"batch {batch}, length {length}" for batch in (2, 3) for length in (6, 8)
    ]
    for row in rows.values():
        assert row["peer"] == "plain" and set(row["contenders"]) == {*decoding.METHODS, "mmi"}


def test_objective(quick_rows):
    smile, mixture, beside = quick_rows("objective").values()
    assert (smile["peer"], mixture["peer"]) == ("naive", "cross-entropy")
    ours = {f"our {name}" for name in ("MLE", *MAIN_OBJECTIVES)}
    assert set(beside["contenders"]) == {*ours, *libraries(CPU)}
    assert beside["peer"] in libraries(CPU)
    for row in (smile, mixture, beside):
        assert all("peak_bytes" in entry for entry in row["contenders"].values())


@pytest.mark.parametrize(
    ("name", "contenders"),
    [
        *((name, ("from hidden states", "naive")) for name in OBJECTIVES),
        *((LIBRARY_COMPARISON, ("our MLE", library)) for library in libraries(CPU)),
    ],
)
def test_contenders_compute_the_same_objective(name, contenders):
    if contenders[1].startswith("cut-cross-entropy") and shutil.which("c++") is None:
        pytest.skip("cut-cross-entropy is compiled, and there is no C++ compiler")
    ours, theirs = (
        [x.clone() for x in build(who, name, TINY_SIZES, CPU, bf16=False)()] for who in contenders
    )
    assert len(ours) == (3 if name == LIBRARY_COMPARISON else 4)
    assert ours[2].shape == (TINY_SIZES.V, TINY_SIZES.D)
    torch.testing.assert_close(ours, theirs)


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


def test_loader(quick_rows):
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    (row,) = quick_rows("loader").values()
    assert set(row["contenders"]) == {"ours", "original"} and row["peer"] == "original"
    assert row["contenders"]["ours"]["unit"] == "images"
