"""CLIP's features, and the scores by them, against transformers in float64, one at a time."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPModel

from captioning.data import MEAN, STD
from captioning.metrics.clip import Clip
from captioning.metrics.clipscore import ClipScore
from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.runtime.errors import UserError

TEXTS = ["the cat", "", "and the dog's ball is 3", "the " * 40, "a cat and a dog"]
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


def test_text_features(clip, naive):
    ids, long = clip.encode(TEXTS)
    assert long == [False, False, False, True, False] and len(ids[3]) == 24
    assert all(text[0] == clip.start and text[-1] == clip.end for text in ids)
    assert clip.end not in ids[3][:-1]
    expected = [unit(naive.get_text_features(torch.tensor([text]))) for text in ids]
    assert clip.text_features(ids).numpy() == pytest.approx(np.array(expected), abs=1e-6)


@pytest.mark.parametrize(("width", "height"), [(24, 24), (61, 40), (31, 90), (10, 7)])
def test_image_features(clip, naive, tmp_path, width, height):
    pixels = np.random.default_rng(3).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    short = min(width, height)
    size = [int(24 * side / short) for side in (width, height)]
    left, top = (round((side - 24) / 2) for side in size)
    photo = Image.fromarray(pixels).resize(size, Image.BICUBIC)
    photo = photo.crop((left, top, left + 24, top + 24))
    array = (np.asarray(photo) / 255 - MEAN) / STD
    images = torch.from_numpy(array.transpose(2, 0, 1))[None]
    expected = unit(naive.get_image_features(images))
    image = clip.read_image(tmp_path / "noise.png")
    both = clip.image_features(torch.stack([image, torch.zeros(3, 24, 24)]))
    assert both[0].numpy() == pytest.approx(expected, abs=1e-6)


def test_values_are_those_of_every_version(clip):
    """Recorded with transformers 5.23.0; the weights depend on a seed alone."""
    text = clip.text_features(clip.encode(["the cat and the dog"])[0])[0]
    image = clip.image_features(torch.linspace(-1, 1, 3 * 24 * 24).view(1, 3, 24, 24))[0]
    assert text[:3].tolist() == pytest.approx([-0.362853, 0.014817, 0.381269], abs=1e-5)
    assert image[:3].tolist() == pytest.approx([-0.280454, -0.108550, -0.080130], abs=1e-5)


def test_name_identifies_the_weights(clip, clip_folder, tmp_path):
    assert clip.name.startswith(f"{clip_folder}@") and clip.weights == Clip(clip_folder).weights
    other = CLIPModel.from_pretrained(str(clip_folder))
    with torch.no_grad():
        other.visual_projection.weight[0, 0] += 1e-3
    other.save_pretrained(str(tmp_path))
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
    (tmp_path / "config.json").write_text((gpt2_folder / "config.json").read_text())
    refused("clip_model: no configuration of this kind of model")
    (tmp_path / "config.json").write_text((clip_folder / "config.json").read_text())
    refused("the weights of another model")


def test_a_strip_does_not_fill_the_memory(clip, tmp_path):
    """Enlarged whole, so that its short side fits, it would have 58 million values."""
    ramp = np.linspace(0, 255, 100_000).astype(np.uint8)
    strip = np.stack([ramp, np.full_like(ramp, 9), np.full_like(ramp, 99)], axis=1)[:, None]
    for name, pixels in {"tall": strip, "wide": strip.transpose(1, 0, 2)}.items():
        Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / f"{name}.png")
        image = clip.read_image(tmp_path / f"{name}.png")
        middle = (torch.tensor([127.0, 9, 99]) / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
        assert image.shape == (3, 24, 24)
        torch.testing.assert_close(image.mean((1, 2)), middle, atol=0.02, rtol=0)
    noise = np.random.default_rng(0).integers(0, 256, (64 * 9, 9, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "long.png")  # no strip yet
    assert torch.equal(
        clip.read_image(tmp_path / "long.png"), clip.preprocess(Image.fromarray(noise))
    )


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def evaluate(clip_folder, photos, cache):
    settings = Settings(dict(zip(PREDICTIONS, photos)), cache_dir=cache, batch_size=3)
    evaluator = ClipScore(settings, clip_model=str(clip_folder))
    return lambda: evaluator.evaluate(CaptionSet(PREDICTIONS, REFERENCES))


def test_clipscore_is_the_formula(evaluate, clip, naive, photos, clip_folder):
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
    assert result.metrics["CLIPScore"].value == pytest.approx(sum(each) / 4)
    assert result.metrics["CLIPScore"].low < result.metrics["CLIPScore"].high
    assert result.settings["clipscore_truncated"] == 1
    assert result.settings["clip_model"].startswith(f"{clip_folder}@")


def test_the_second_evaluation_skips_the_image_tower(evaluate, monkeypatch, photos):
    before = evaluate()
    with monkeypatch.context() as patched:
        patched.setattr(Clip, "read_image", lambda *_: 1 / 0)
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
    damages = [b"", whole[:100], whole[:inside] + b"????" + whole[inside + 4 :]]
    for features in (np.ones((4, 3), np.float32), np.ones((4, 16), np.float32)):  # no unit vectors
        np.savez(cache / "other.npz", features=features, files=["a"] * 4)
        damages.append((cache / "other.npz").read_bytes())
        (cache / "other.npz").unlink()
    for damaged in damages:
        file.write_bytes(damaged)
        assert evaluate() == before
        assert f"{file} is damaged" in capsys.readouterr().err
        assert len(np.load(file)["features"]) == 4
    assert list(cache.iterdir()) == [file]


def test_a_cache_that_cannot_be_written(evaluate, cache, capsys):
    cache.write_text("a file, no folder")
    assert evaluate().metrics["CLIPScore"].n == 4
    assert "image features are not cached" in capsys.readouterr().err


def test_missing_weights_are_reported_before():
    reasons = ClipScore().unavailable()
    assert list(reasons) == ["CLIPScore", "RefCLIPScore", "CLIPScore_sentences"]
    assert "no config.json of openai/clip-vit-base-patch32 here or on" in reasons["CLIPScore"]
