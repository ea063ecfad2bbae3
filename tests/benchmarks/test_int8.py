"""The benchmark of captioning in 8 bits in its smallest form."""

import json

import pytest
import torch

from benchmarks.captioners import our_captioner
from benchmarks.int8 import main, weight_bytes
from BLIP.kernels.int8_linear import has_int8

pytestmark = pytest.mark.skipif(
    not has_int8(torch.device("cpu")), reason="torch has no kernels for 8 bits here"
)


def test_bytes_of_the_weights():
    """The encoder's in 8 bits, the decoder's in 16; biases, norms and positions stay in 32."""
    ours = our_captioner(tiny=True).eval()
    of_images, of_text = 0, 0
    for name, weight in ours.named_parameters(remove_duplicate=False):
        if weight.dim() != 2 or "position" in name:
            continue
        if name.startswith("visual_encoder"):
            of_images += weight.numel()
        else:
            of_text += weight.numel()
    whole = sum(weight.numel() for _, weight in ours.named_parameters(remove_duplicate=False))
    assert of_images and of_text
    assert weight_bytes(ours, ours.for_inference()) == 4 * whole
    expected = 4 * whole - 3 * of_images - 2 * of_text
    assert weight_bytes(ours, ours.for_inference(torch.int8)) == expected


def test_quick_rows(tmp_path):
    main(["--quick", "--output", str(tmp_path)])
    rows = json.loads((tmp_path / "int8.json").read_text())["rows"]
    names = [f"batch {batch}, length {length}" for batch in (2, 3) for length in (6, 8)]
    each = (
        [(name, "captions") for name in names],
        [(f"{name}, encoder", "images") for name in names],
    )
    assert [(row["name"], row["item"]) for row in rows] == [
        row for both in zip(*each) for row in both
    ]
    for row in rows:  # the encoder is measured against the encoder
        assert row["peer"] == "fp32" and set(row["contenders"]) == {"int8", "fp32"}
        assert "of fp32's" in row["note"]
