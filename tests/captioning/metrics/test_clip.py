"""CLIP's features against transformers in float64, one text and one image at a time."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPModel

from captioning.data import MEAN, STD
from captioning.metrics.clip import Clip
from captioning.runtime.errors import UserError

TEXTS = ["the cat", "", "and the dog's ball is 3", "the " * 40, "a cat and a dog"]


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


def test_name_tells_the_weights(clip, clip_folder, tmp_path):
    assert clip.name.startswith(f"{clip_folder}@") and clip.weights == Clip(clip_folder).weights
    other = CLIPModel.from_pretrained(str(clip_folder))
    with torch.no_grad():
        other.visual_projection.weight[0, 0] += 1e-3
    other.save_pretrained(str(tmp_path))
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_text((clip_folder / name).read_text())
    assert Clip(str(tmp_path)).weights != clip.weights


def test_what_is_missing_is_one_line(clip_folder, gpt2_folder, tmp_path):
    with pytest.raises(UserError, match=f"clip_model: found no config.json in {tmp_path}: put"):
        Clip(str(tmp_path))
    with pytest.raises(UserError, match="of nobody/nothing here or on the hub: put"):
        Clip("nobody/nothing")
    for path in clip_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = next(path for path in tmp_path.iterdir() if path.suffix in (".safetensors", ".bin"))
    weights.write_bytes(b"broken")
    with pytest.raises(UserError, match="download it again"):
        Clip(str(tmp_path))
    weights.unlink()
    torch.save({"wte.weight": torch.zeros(3)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="the weights of another model"):
        Clip(str(tmp_path))
    (tmp_path / "config.json").write_text((gpt2_folder / "config.json").read_text())
    with pytest.raises(UserError, match="this is no CLIP model"):
        Clip(str(tmp_path))
    sizes = json.loads((clip_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "text_config": None}))
    with pytest.raises(UserError, match="clip_model: no sizes of a CLIP"):
        Clip(str(tmp_path))


def test_a_strip_does_not_fill_the_memory(clip_folder, tmp_path):
    """Enlarged whole, so that its short side fits, it would have 58 million values."""
    clip = Clip(str(clip_folder))
    ramp = np.linspace(0, 255, 100_000).astype(np.uint8)
    strip = np.stack([ramp, np.full_like(ramp, 9), np.full_like(ramp, 99)], axis=1)[:, None]
    for name, pixels in {"tall": strip, "wide": strip.transpose(1, 0, 2)}.items():
        Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / f"{name}.png")
        image = clip.read_image(tmp_path / f"{name}.png")
        middle = (torch.tensor([127.0, 9, 99]) / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
        assert image.shape == (3, 24, 24)
        torch.testing.assert_close(image.mean((1, 2)), middle, atol=0.02, rtol=0)


def test_a_long_image_that_is_no_strip_is_scaled_whole(clip_folder, tmp_path):
    clip = Clip(str(clip_folder))
    noise = np.random.default_rng(0).integers(0, 256, (64 * 9, 9, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "long.png")
    expected = clip.preprocess(Image.fromarray(noise))
    assert torch.equal(clip.read_image(tmp_path / "long.png"), expected)
