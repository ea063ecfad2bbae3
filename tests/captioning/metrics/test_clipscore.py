"""CLIPScore against its formula in float64, one caption and one image at a time."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPModel

from captioning.metrics import clip
from captioning.metrics.clipscore import ClipScore
from captioning.metrics.evaluator import CaptionSet, Settings

PREDICTIONS = {7: "the cat", "b": "", 3: "a dog " * 20, 9: "and the dog's ball"}
REFERENCES = {
    7: ["a cat", "the cat and the dog"],
    "b": ["the dog"],
    3: ["dog", "a ball", "a cat"],
    9: [""],
}


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def evaluate(clip_folder, photos, cache):
    settings = Settings(images=dict(zip(PREDICTIONS, photos)), cache_dir=cache, batch_size=3)
    captions = PREDICTIONS, REFERENCES
    evaluator = ClipScore(settings, clip_model=str(clip_folder))
    return lambda: evaluator.evaluate(CaptionSet(*captions))


def naive_features(folder, photos):
    """Return functions of a text and of an image's number to a vector in float64."""
    model = CLIPModel.from_pretrained(str(folder)).double().eval()
    single = clip.Clip(str(folder))

    def unit(features):
        features = getattr(features, "pooler_output", features)[0].detach().numpy()
        return features / np.sqrt(features @ features)

    def text(caption):
        (ids,), _ = single.encode(["A photo depicts " + caption])
        return unit(model.get_text_features(torch.tensor([ids])))

    def image(number):
        pixels = single.read_image(photos[number])[None].double()
        return unit(model.get_image_features(pixels))

    return text, image


def test_scores_are_those_of_the_formulas(evaluate, clip_folder, photos):
    result = evaluate()
    text, image = naive_features(clip_folder, photos)
    for number, image_id in enumerate(PREDICTIONS):
        candidate = text(PREDICTIONS[image_id])
        score = 2.5 * max(candidate @ image(number), 0)
        nearest = max(max(candidate @ text(human), 0) for human in REFERENCES[image_id])
        both = 2 * score * nearest / (score + nearest) if score + nearest else 0
        scores = [result.per_image[name][number] for name in ("CLIPScore", "RefCLIPScore")]
        assert scores == pytest.approx([100 * score, 100 * both], rel=1e-5, abs=1e-4)
    each = result.per_image["CLIPScore"]
    assert min(each) == 0 < max(each)  # both sides of the maximum are seen
    assert result.metrics["CLIPScore"].value == pytest.approx(sum(each) / 4)
    assert result.metrics["CLIPScore"].low < result.metrics["CLIPScore"].high
    assert result.settings["clipscore_truncated"] == 1
    assert result.settings["clip_model"].startswith(f"{clip_folder}@")


def test_the_second_evaluation_skips_the_image_tower(evaluate, monkeypatch, photos):
    before = evaluate()
    with monkeypatch.context() as patched:
        patched.setattr(clip.Clip, "read_image", lambda *_: 1 / 0)
        assert evaluate() == before
        Image.effect_noise((40, 30), 90).convert("RGB").save(photos[1])
        with pytest.raises(ZeroDivisionError):
            evaluate()
    assert evaluate().per_image != before.per_image


def test_a_damaged_cache_is_made_again(evaluate, cache, capsys):
    before = evaluate()
    [file] = cache.iterdir()
    whole = file.read_bytes()
    inside = whole.index(b"features.npy") + 200  # a number among them
    for broken in (b"", whole[:100], whole[:inside] + b"????" + whole[inside + 4 :]):
        file.write_bytes(broken)
        assert evaluate() == before
        assert f"{file} is damaged" in capsys.readouterr().err
        assert len(np.load(file)["features"]) == 4
    assert list(cache.iterdir()) == [file]


def test_a_cache_that_cannot_be_written(evaluate, cache, capsys):
    cache.write_text("a file, no folder")
    result = evaluate()
    assert result.metrics["CLIPScore"].n == 4
    assert "image features are not kept" in capsys.readouterr().err


def test_weights_that_are_not_there_are_said_before(tmp_path, photos):
    settings = Settings(images=dict(zip(PREDICTIONS, photos)))
    reasons = ClipScore(settings).unavailable()
    assert list(reasons) == ["CLIPScore", "RefCLIPScore"]
    assert "no config.json of openai/clip-vit-base-patch32 here or on" in reasons["CLIPScore"]
