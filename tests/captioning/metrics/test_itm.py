"""The metric ITM: what BLIP's filter says of each image and caption, one at a time."""

import pytest
import torch
from PIL import Image

from BLIP.itm import load_itm
from captioning.data.image import evaluation_transform
from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.metrics.itm import Itm
from captioning.runtime.errors import UserError

PREDICTIONS = {7: "the cat", "b": "", 3: "a dog " * 20, 9: "a man with a ball"}


def test_itm_and_itc_of_each_image(itm_checkpoint, photos):
    files = dict(zip(PREDICTIONS, photos))
    captions = CaptionSet(PREDICTIONS, {image_id: ["a"] for image_id in files})
    settings = Settings(images=files, batch_size=3)
    result = Itm(settings, itm_model=str(itm_checkpoint)).evaluate(captions)
    model, _ = load_itm(str(itm_checkpoint))
    expected = []
    for image_id, caption in PREDICTIONS.items():
        image = Image.open(files[image_id]).convert("RGB")
        encoded = model.encode(evaluation_transform(48)(image)[None])
        heads = model.match(encoded, [[caption]]), model.similarity(encoded, [[caption]])
        expected.append([100 * head.item() for head in heads])
    for place, name in enumerate(("ITM", "ITC")):
        column = [each[place] for each in expected]
        assert result.per_image[name] == pytest.approx(column, abs=1e-3)
        assert result.metrics[name].value == pytest.approx(sum(column) / 4, abs=1e-3)
    assert result.settings == {"itm_model": str(itm_checkpoint), "itm_truncated": 1}


def test_what_is_wrong_is_said_before_captions_are_made(make_captioner, tmp_path):
    def unavailable(path):
        return Itm(Settings(images={}), itm_model=str(path)).unavailable()

    found = unavailable(tmp_path / "none.pth")
    assert found.keys() == {"ITM", "ITC"} and "none.pth does not exist" in found["ITM"]
    torch.save(make_captioner().state_dict(), tmp_path / "captioner.pth")
    assert "has no image-text matching head" in unavailable(tmp_path / "captioner.pth")["ITC"]
    with pytest.raises(UserError, match="itm_model: "):
        Itm(itm_model=str(tmp_path / "captioner.pth")).evaluate(CaptionSet({}, {}))
