"""Features of CLIP and SigLIP 2, and the scores by them, against transformers."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers import CLIPModel

from captioning.data import MEAN, STD
from captioning.metrics.bootstrap import mean_estimate
from captioning.metrics.clip import Clip, Siglip, load_clip
from captioning.metrics.clipscore import ClipScore
from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.runtime.errors import UserError
from tests.captioning.clip_references import save_siglip, unit

SENTENCES = {7: ["the cat"], "b": [""], 3: ["a dog " * 20], 9: ["and the dog's.", "ball"]}
PREDICTIONS = {image_id: " ".join(parts) for image_id, parts in SENTENCES.items()}
REFERENCES = {
    7: ["a cat", "the cat and the dog"],
    "b": ["the dog"],
    3: ["dog", "a ball", "a cat"],
    9: [""],
}


@pytest.fixture(scope="module")
def siglip_folder(tmp_path_factory):
    return save_siglip(tmp_path_factory.mktemp("siglip"))


@pytest.fixture
def clip(clip_folder):
    return Clip(str(clip_folder))


@pytest.fixture
def naive(clip_folder):
    return CLIPModel.from_pretrained(str(clip_folder)).double().eval()


@pytest.mark.parametrize(("width", "height"), [(24, 24), (61, 40), (31, 90), (10, 7)])
def test_image_features_are_those_of_transformers(clip, naive, tmp_path, width, height):
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


def test_the_name_of_a_clip_identifies_its_weights(clip, naive, clip_folder, tmp_path):
    assert clip.name.startswith(f"{clip_folder}@") and clip.weights == Clip(clip_folder).weights
    naive.visual_projection.weight.data[0, 0] += 1e-3
    naive.float().save_pretrained(str(tmp_path))
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_text((clip_folder / name).read_text())
    assert Clip(str(tmp_path)).weights != clip.weights


def test_a_missing_or_damaged_file_of_a_clip_is_one_line(clip_folder, gpt2_folder, tmp_path):
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


def test_features_of_siglip_are_those_of_transformers(siglip_folder, photos):
    clip = load_clip(str(siglip_folder))
    assert isinstance(clip, Siglip) and clip.width == 32
    reference = transformers.SiglipModel.from_pretrained(str(siglip_folder)).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(siglip_folder / "tokenizer.json"), pad_token="<pad>"
    )
    texts = ["The cat", "", "a dog and a bird", "the cat and the dog " * 40]
    padded = {"padding": "max_length", "max_length": 12, "truncation": True}
    expected = tokenizer([text.lower() for text in texts], return_tensors="pt", **padded)
    ids, long = clip.encode(texts)
    assert long == [False, False, False, True]
    features = unit(reference.get_text_features(input_ids=expected["input_ids"]))
    assert clip.text_features(ids).numpy() == pytest.approx(features, abs=1e-6)
    processor = transformers.AutoImageProcessor.from_pretrained(str(siglip_folder), use_fast=False)
    images = [Image.open(path).convert("RGB") for path in photos]
    pixels = processor(images=images, return_tensors="pt")["pixel_values"]
    own = torch.stack([clip.read_image(path) for path in photos])
    assert own.numpy() == pytest.approx(pixels.numpy(), abs=1e-5)
    features = unit(reference.get_image_features(pixel_values=pixels))
    assert clip.image_features(own).numpy() == pytest.approx(features, abs=1e-5)


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
    for photo, (image_id, caption), *found in zip(
        photos, PREDICTIONS.items(), *result.per_caption.values()
    ):
        image = unit(naive.get_image_features(clip.read_image(photo)[None].double()))
        score, *parts = (
            2.5 * max(text(each) @ image, 0) for each in [caption, *SENTENCES[image_id]]
        )
        nearest = max(max(text(caption) @ text(human), 0) for human in REFERENCES[image_id])
        both = 2 * score * nearest / (score + nearest) if score + nearest else 0
        expected = 100 * np.array([score, both, np.mean(parts)])
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-4)
    each = result.per_caption["CLIPScore"]
    assert min(each) == 0 < max(each)  # both sides of the maximum are seen
    assert result.metrics["CLIPScore"] == mean_estimate(each)
    assert result.settings == {"clipscore_truncated": 1, "clip_model": clip.name}


def test_features_of_images_are_computed_once_and_again_when_a_file_changes(
    evaluate, monkeypatch, photos
):
    before = evaluate()
    with monkeypatch.context() as patched:
        patched.setattr(Clip, "read_image", lambda *_: 1 / 0)
        assert evaluate() == before
        Image.effect_noise((40, 30), 90).convert("RGB").save(photos[1])
        with pytest.raises(ZeroDivisionError):
            evaluate()
    assert evaluate().per_caption != before.per_caption


def test_a_cache_that_is_damaged_or_cannot_be_written_changes_no_score(evaluate, tmp_path, capsys):
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
