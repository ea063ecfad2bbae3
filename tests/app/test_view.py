"""What is shown: names are text, the gaze lies where the weights are."""

import base64
import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from app import view
from app.checkpoints import Checkpoint
from app.desk import Desk
from app.gaze_pictures import SIDE, gaze_pictures
from app.options import read_options
from baselines import ImageEncoder, Vocabulary, build_classic

PHOTO = Image.radial_gradient("L").convert("RGB")
OPTIONS = read_options({"max_length": 12, "min_length": 8})


def test_the_gaze_is_bright_where_the_captioner_looked_and_clear_elsewhere():
    weights = torch.zeros(2, 4, 4)
    weights[0, 0, 3] = weights[1, 2, 1] = 1
    for place, source in zip([(0, 3), (2, 1)], gaze_pictures(weights)):
        data = base64.b64decode(source.split("base64,")[1])
        picture = np.asarray(Image.open(io.BytesIO(data)))  # (SIDE, SIDE, RGBA)
        row, column = np.unravel_index(picture[..., 3].argmax(), (SIDE, SIDE))
        assert (row * 4 // SIDE, column * 4 // SIDE) == place
        assert picture[row, column, :3].mean() > 200
        opposite = picture[SIDE - 1 - row, SIDE - 1 - column]
        assert opposite[3] == 0


def test_a_card_has_each_word_its_probability_and_its_gaze(desk):
    caption = desk.caption(PHOTO, desk.checkpoints[1], OPTIONS)
    html = view.results("photo.jpg", PHOTO, [caption])
    words = re.findall(r'data-percent="([\d.]+)" data-gaze="data:image/png;base64,\w', html)
    record = caption.record()
    expected = [100 * entry["probability"] for entry in record["words"]]
    assert [float(percent) for percent in words] == pytest.approx(expected, abs=0.06)
    data = re.search(r"data:application/json;base64,([\w+/=]+)", html)[1]
    assert json.loads(base64.b64decode(data)) == [{"image": "photo.jpg", **record}]


def test_a_captioner_without_gaze_says_so_and_takes_a_prompt():
    words = Vocabulary(["a", "dog", "runs"])
    captioner = build_classic("lstm", ImageEncoder("shufflenet_v2_x0_5"), words).eval()
    checkpoint = Checkpoint(
        "x.pth",
        "LSTM",
        "#000",
        SimpleNamespace(model="lstm", image_size=64, augmentation="none"),
        captioner,
    )
    options = read_options({"max_length": 8, "min_length": 6, "prompt": "A dog"})
    caption = Desk([checkpoint]).caption(PHOTO, checkpoint, options)
    html = view.results("photo.jpg", PHOTO, [caption])
    assert "it has no gaze" in html and "data-gaze" not in html
    assert html.count("data-percent") == len(caption.told.caption.split()) > 0
    assert caption.settings["prompt"] == "a dog " and captioner.prompt == ""


def test_names_and_reasons_are_text(desk):
    name = '"><script>alert(1)</script>.jpg'
    shown = view.results(name, PHOTO, [desk.caption(PHOTO, desk.checkpoints[0], OPTIONS)])
    assert "<script" not in shown
    assert "<script" not in view.error(name)
