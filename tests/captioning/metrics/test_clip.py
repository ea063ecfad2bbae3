"""CLIP's features, and the scores by them, against transformers in float64, one at a time."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPModel

from captioning.data import MEAN, STD
from captioning.metrics.bootstrap import mean
from captioning.metrics.clip import Clip
from captioning.metrics.clipscore import ClipScore
from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.runtime.errors import UserError

PREDICTIONS = {7: "the cat", "b": "", 3: "a dog " * 20, 9: "and the dog's ball"}
REFERENCES = {
    7: ["a cat", "the cat and the dog"],
    "b": ["the dog"],
    3: ["dog", "a ball", "a cat"],
    9: [""],
}


@pytest.fixture
def clip(clip_folder):
    return Clip(str(clip_folder))


@pytest.fixture
def naive(clip_folder):
    return CLIPModel.from_pretrained(str(clip_folder)).double().eval()


def unit(features):
    features = getattr(features, "pooler_output", features)[0].detach().numpy()
    return features / np.sqrt((features**2).sum())


@pytest.mark.parametrize(("width", "height"), [(24, 24), (61, 40), (31, 90), (10, 7)])
def test_image_features(clip, naive, tmp_path, width, height):
    pixels = np.random.default_rng(3).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    short = min(width, height)
    size = [int(24 * side / short) for side in (width, height)]
    left, top = (round((side - 24) / 2) for side in size)
    photo = np.asarray(Image.fromarray(pixels).resize(size, Image.BICUBIC)) / 255
    array = (photo[top : top + 24, left : left + 24] - MEAN) / STD
    images = torch.from_numpy(array.transpose(2, 0, 1))[None]
    expected = unit(naive.get_image_features(images))
    image = clip.read_image(tmp_path / "noise.png")
    both = clip.image_features(torch.stack([image, torch.zeros(3, 24, 24)]))
    assert both[0].numpy() == pytest.approx(expected, abs=1e-6)


def test_name_identifies_the_weights(clip, naive, clip_folder, tmp_path):
    assert clip.name.startswith(f"{clip_folder}@") and clip.weights == Clip(clip_folder).weights
    naive.visual_projection.weight.data[0, 0] += 1e-3
    naive.float().save_pretrained(str(tmp_path))
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_text((clip_folder / name).read_text())
    assert Clip(str(tmp_path)).weights != clip.weights


def test_what_is_missing_is_one_line(clip_folder, gpt2_folder, tmp_path):
    def refused(message, source=tmp_path):
        with pytest.raises(UserError, match=message):
            Clip(str(source))

    refused(f"clip_model: found no config.json in {tmp_path}: put")
    refused("of nobody/nothing here or on the hub: put", "nobody/nothing")
    for path in clip_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = next(path for path in tmp_path.iterdir() if path.suffix in (".safetensors", ".bin"))
    weights.write_bytes(b"broken")
    refused("download it again")
    weights.unlink()
    torch.save({"wte.weight": torch.zeros(3)}, tmp_path / "pytorch_model.bin")
    refused("the weights of another model")
    (tmp_path / "config.json").write_text((gpt2_folder / "config.json").read_text())
    refused("clip_model: no configuration of this kind of model")


@pytest.fixture
def evaluate(clip_folder, photos, tmp_path):
    files = dict(zip(PREDICTIONS, photos))
    settings = Settings(files, cache_dir=tmp_path / "cache", batch_size=3)
    evaluator = ClipScore(settings, clip_model=str(clip_folder))
    return lambda: evaluator.evaluate(CaptionSet(PREDICTIONS, REFERENCES))


def test_clipscore_is_the_formula(evaluate, clip, naive, photos):
    def text(caption):
        (ids,), _ = clip.encode(["A photo depicts " + caption])
        return unit(naive.get_text_features(torch.tensor([ids])))

    result = evaluate()
    for number, image_id in enumerate(PREDICTIONS):
        candidate = text(PREDICTIONS[image_id])
        pixels = clip.read_image(photos[number])[None].double()
        score = 2.5 * max(candidate @ unit(naive.get_image_features(pixels)), 0)
        nearest = max(max(candidate @ text(human), 0) for human in REFERENCES[image_id])
        both = 2 * score * nearest / (score + nearest) if score + nearest else 0
        scores = [result.per_image[name][number] for name in ("CLIPScore", "RefCLIPScore")]
        assert scores == pytest.approx([100 * score, 100 * both], rel=1e-5, abs=1e-4)
    each = result.per_image["CLIPScore"]
    assert min(each) == 0 < max(each)  # both sides of the maximum are seen
    assert result.metrics["CLIPScore"] == mean(each)
    assert result.settings == {"clipscore_truncated": 1, "clip_model": clip.name}


def test_the_second_evaluation_skips_the_image_tower(evaluate, monkeypatch, photos):
    before = evaluate()
    with monkeypatch.context() as patched:
        patched.setattr(Clip, "read_image", lambda *_: 1 / 0)
        assert evaluate() == before
        Image.effect_noise((40, 30), 90).convert("RGB").save(photos[1])
        with pytest.raises(ZeroDivisionError):
            evaluate()
    assert evaluate().per_image != before.per_image


def test_a_cache_that_is_damaged_or_cannot_be_written(evaluate, tmp_path, capsys):
    before = evaluate()
    [file] = (tmp_path / "cache").iterdir()
    whole = file.read_bytes()
    inside = whole.index(b"features.npy") + 200  # a number among them
    damages = [b"", whole[:100], whole[:inside] + b"????" + whole[inside + 4 :]]
    for width in (3, 16):  # no unit vectors
        np.savez(tmp_path / "other.npz", features=np.ones((4, width), np.float32), files=["a"] * 4)
        damages.append((tmp_path / "other.npz").read_bytes())
    for damaged in damages:
        file.write_bytes(damaged)
        assert evaluate() == before
        assert f"{file} is damaged" in capsys.readouterr().err
        assert len(np.load(file)["features"]) == 4
    file.unlink()
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("a file, no folder")  # so that it cannot be written
    assert evaluate().metrics["CLIPScore"].n == 4
    assert "image features are not cached" in capsys.readouterr().err
