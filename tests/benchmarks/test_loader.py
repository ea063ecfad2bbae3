"""The loader's benchmark: that its contenders do what they are compared for."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import loader, original_input

SHAPES = np.random.default_rng(2).integers(0, 256, (5, 6, 3), dtype=np.uint8)
SCENE = np.array(Image.fromarray(SHAPES).resize((50, 40), Image.BICUBIC))
BY_CHANNEL = ("autocontrast", "equalize")  # which `input: exact` has, and its tests look at
INNER = (slice(8, -8), slice(8, -8))  # where no operation has brought the filling in


def test_the_smallest_run_counts_every_image(tmp_path):
    loader.main(["--quick", "--output", str(tmp_path)])
    content = json.loads((tmp_path / "loader.json").read_text())
    files, tars = content["rows"]
    assert set(files["contenders"]) == {"ours", "original", "decoding alone"}
    assert files["peer"] == "original" and files["items"] == 8
    assert set(tars["contenders"]) == {"ours", "webdataset"}
    assert tars["peer"] == "webdataset" and tars["items"] == 8


def test_both_make_normalised_squares(tmp_path):
    paths = loader.draw_photos(tmp_path, (80, 60), 8)
    ours = loader.Ours(paths, 32, 4, 0)
    ours.loader.set_epoch(0)
    theirs = original_input.original_loader(paths, 32, 4, 0)
    means = []
    for images in (
        [batch["image"] for batch in loader.Prefetcher(ours.loader, torch.device("cpu"))],
        [image for image, _ in theirs],
    ):
        assert [batch.shape for batch in images] == [(4, 3, 32, 32)] * 2
        assert all(batch.dtype == torch.float32 for batch in images)
        means.append(float(torch.cat(images).mean()))
    # The original's auto-contrast makes some channels all white.
    assert means[0] == pytest.approx(means[1], abs=0.8)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", [n for n in original_input.OPERATIONS if n not in BY_CHANNEL])
def test_the_originals_operations_are_those_that_we_train_with(name, sign, monkeypatch):
    from captioning.data import randaugment

    monkeypatch.setattr(randaugment, "random_sign", lambda: sign)
    expected = np.asarray(getattr(randaugment, name)(Image.fromarray(SCENE))).astype(int)
    nearest = []
    for their_sign in (1, -1):  # which way is positive is a matter of taste
        monkeypatch.setattr(original_input, "_sign", lambda their_sign=their_sign: their_sign)
        theirs = original_input.OPERATIONS[name](SCENE.copy()).astype(int)
        assert theirs.shape == SCENE.shape
        nearest.append(np.abs(theirs - expected)[INNER].mean())
    # OpenCV's middle, about which the original turns, is half a pixel off.
    assert min(nearest) < (6 if name == "rotate" else 1.5)
