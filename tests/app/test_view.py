"""The HTML of results, with escaped names and attention maps, and the ZIP of a batch."""

import base64
import io
import json
import re
import shutil
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from app import view
from app.checkpoints import Checkpoint
from app.options import read_options
from app.photos import Limits
from app.service import CaptionService, caption_all
from baselines import ClassicCaptioner, ImageEncoder, Vocabulary
from captioning.config import Config
from captioning.models.score_tokens import ScoredCaption
from tests.app.captions import caption_of

PHOTO = Image.radial_gradient("L").convert("RGB")
OPTIONS = read_options({"max_length": 12, "min_length": 8})


def configured(model, image_size):
    return Config(model=model, image_size=image_size, image_root="", ann_root="", output_dir="x")


def test_an_attention_map_is_bright_at_its_maximum_and_transparent_at_zero():
    side, weights = view.MAP_SIDE, torch.zeros(2, 4, 4)
    weights[0, 0, 3] = weights[1, 2, 1] = 1
    details = ScoredCaption("", 0, [], torch.zeros(2), weights)
    for place, source in zip([(0, 3), (2, 1)], view.attention_pictures(details)):
        data = base64.b64decode(source.split("base64,")[1])
        picture = np.asarray(Image.open(io.BytesIO(data)))  # (side, side, RGBA)
        row, column = np.unravel_index(picture[..., 3].argmax(), (side, side))
        assert (row * 4 // side, column * 4 // side) == place
        assert picture[row, column, :3].mean() > 200
        opposite = picture[side - 1 - row, side - 1 - column]
        assert opposite[3] == 0


def test_a_card_has_each_word_with_its_probability_and_attention_map(service):
    caption = caption_of(service, PHOTO, service.checkpoints[1], OPTIONS)
    html = view.render_results("photo.jpg", PHOTO, [caption])
    words = re.findall(r'data-percent="([\d.]+)" data-attention="data:image/png;base64,\w', html)
    record = caption.record()
    expected = [100 * entry["probability"] for entry in record["words"]]
    assert [float(percent) for percent in words] == pytest.approx(expected, abs=0.06)
    data = re.search(r"data:application/json;base64,([\w+/=]+)", html)[1]
    assert json.loads(base64.b64decode(data)) == [{"image": "photo.jpg", **record}]


def test_a_captioner_without_attention_says_so_and_takes_a_prompt():
    words = Vocabulary(["a", "dog", "runs"])
    captioner = ClassicCaptioner("lstm", ImageEncoder("shufflenet_v2_x0_5"), words).eval()
    checkpoint = Checkpoint("x.pth", "LSTM", "#000", configured("lstm", 64), captioner)
    options = read_options({"max_length": 8, "min_length": 6, "prompt": "A dog"})
    caption = caption_of(CaptionService([checkpoint], Limits()), PHOTO, checkpoint, options)
    html = view.render_results("photo.jpg", PHOTO, [caption])
    assert "it has no attention map" in html and "data-attention" not in html
    assert html.count("data-percent") == len(caption.details.caption.split()) > 0
    assert caption.settings["prompt"] == "a dog " and captioner.prompt == ""


def test_names_and_reasons_are_text(service):
    name = '"><script>alert(1)</script>.jpg'
    caption = caption_of(service, PHOTO, service.checkpoints[0], OPTIONS)
    shown = view.render_results(name, PHOTO, [caption])
    assert "<script" not in shown
    assert "<script" not in view.render_error(name)


def test_a_zip_has_the_captions_of_good_photos_and_the_reasons_of_bad_ones(
    service, files, tmp_path
):
    (tmp_path / "more").mkdir()
    shutil.copy(files / "photo.jpg", tmp_path / "more" / "photo.jpg")
    paths = [files / "photo.jpg", files / "cut.jpg", tmp_path / "more" / "photo.jpg"]
    photos = [(path, path.name) for path in paths]
    chosen = [checkpoint.label for checkpoint in service.checkpoints[1:]]
    done = list(caption_all(service, photos, chosen, OPTIONS))
    view.write_zip(done, tmp_path / "captions.zip")
    with zipfile.ZipFile(tmp_path / "captions.zip") as archive:
        content = {name: archive.read(name).decode() for name in archive.namelist()}
    records = [json.loads(line) for line in content.pop("captions.jsonl").splitlines()]
    (failed,) = (json.loads(line) for line in content.pop("failed.jsonl").splitlines())
    assert failed["image"] == "cut.jpg" and "truncated" in failed["reason"]
    assert [(r["image"], r["label"]) for r in records] == [
        ("photo.jpg", label) for _ in range(2) for label in chosen
    ]
    caption = records[0]["caption"]
    assert content == {
        "SMILE/photo.txt": caption + "\n",
        "SMILE/photo_2.txt": caption + "\n",
        "MLE+SMILE 0.5_0.5/photo.txt": records[1]["caption"] + "\n",
        "MLE+SMILE 0.5_0.5/photo_2.txt": records[1]["caption"] + "\n",
    }
