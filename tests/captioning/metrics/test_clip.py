"""Features of CLIP and SigLIP 2, and the scores by them, against transformers."""

import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers import CLIPConfig, CLIPModel

from captioning.data.image import MEAN, STD
from captioning.metrics.base import Settings
from captioning.metrics.clip import CLIP_MODEL, Clip
from captioning.metrics.intervals import mean_estimate
from captioning.runtime.errors import UserError
from tests.captioning.conftest import save_siglip, unit
from tests.captioning.metrics.conftest import scored
from tests.programs import raises_line

NAMES = ("vocab.json", "merges.txt", "tokenizer.json")
SENTENCES = {7: ["the cat"], "b": [""], 3: ["a dog " * 20], 9: ["and the dog's.", "BALL"]}
PREDICTIONS = {image_id: " ".join(parts) for image_id, parts in SENTENCES.items()}
REFERENCES = {7: ["a cat", "the cat and the dog"], "b": ["the dog"], 9: [""]}
REFERENCES[3] = ["dog", "a ball", "a \ud83d cat"]


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
    size = [int(24 * side / min(width, height)) for side in (width, height)]
    left, top = (round((side - 24) / 2) for side in size)
    photo = np.asarray(Image.fromarray(pixels).resize(size, Image.BICUBIC)) / 255
    array = (photo[top : top + 24, left : left + 24] - MEAN) / STD
    expected = unit(naive.get_image_features(torch.from_numpy(array.transpose(2, 0, 1))[None]))
    image = clip.read_image(tmp_path / "noise.png")
    both = clip.image_features(torch.stack([image, torch.zeros(3, 24, 24)]))
    assert both[0].numpy() == pytest.approx(expected, abs=1e-6)


def test_a_strip_is_not_resized_to_gigabytes(clip, tmp_path):
    Image.new("RGB", (100_000, 1), "red").save(tmp_path / "strip.png")
    small = Image.new("RGB", (24, 24))
    with mock.patch.object(Image.Image, "resize", return_value=small) as resize:
        clip.read_image(tmp_path / "strip.png")
    assert max(resize.call_args[0][0]) <= 64 * 24


def test_a_missing_or_damaged_file_of_a_clip_is_one_line(clip, clip_folder, gpt2_folder, tmp_path):
    folder = shutil.copytree(clip_folder, tmp_path / "clip")

    def refused(reason, source=folder):
        with raises_line(UserError, f"clip_model: {source} ", reason):
            Clip(str(source))

    state = CLIPModel.from_pretrained(str(folder)).state_dict()
    projection = state.pop("visual_projection.weight")
    for path in folder.glob("*model.*"):
        path.unlink()
    refused("a hub id, or a folder with config.json")
    torch.save(state, folder / "pytorch_model.bin")
    refused("the weights lack visual_projection.weight")
    torch.save({**state, "visual_projection.weight": projection + 1}, folder / "pytorch_model.bin")
    assert Clip(str(folder)).name.split("@")[1] != clip.name.split("@")[1]  # it names the weights
    (folder / "tokenizer.json").unlink()
    if transformers.__version__ == "4.15.0":
        refused("this version splits words wrongly without tokenizer.json")
    else:
        Clip(str(folder))
    (folder / "merges.txt").unlink()
    refused("there is no vocabulary")
    refused("is a gpt2: give a CLIP", gpt2_folder)


def test_features_of_siglip_are_those_of_transformers(photos, tmp_path):
    folder = save_siglip(tmp_path)
    clip = Clip(str(folder))
    reference = transformers.SiglipModel.from_pretrained(str(folder)).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>"
    )
    texts = ["The cat", "", "a dog and a bird", "the cat and the dog " * 40]
    padded = {"padding": "max_length", "max_length": 12, "truncation": True}
    expected = tokenizer([text.lower() for text in texts], return_tensors="pt", **padded)
    assert [clip.truncates(text) for text in texts] == [False, False, False, True]
    features = unit(reference.get_text_features(input_ids=expected["input_ids"]))
    assert clip.text_features(texts).numpy() == pytest.approx(features, abs=1e-6)
    processor = transformers.AutoImageProcessor.from_pretrained(str(folder), use_fast=False)
    images = [Image.open(path).convert("RGB") for path in photos]
    pixels = processor(images=images, return_tensors="pt")["pixel_values"]
    own = torch.stack([clip.read_image(path) for path in photos])
    assert own.numpy() == pytest.approx(pixels.numpy(), abs=1e-5)
    features = unit(reference.get_image_features(pixel_values=pixels))
    assert clip.image_features(own).numpy() == pytest.approx(features, abs=1e-5)
    (folder / "preprocessor_config.json").unlink()
    with raises_line(UserError, "lacks its preprocessor_config.json"):
        Clip(str(folder))


# Parts of names: transformers' and OpenAI's.
PARTS = {
    "vision_model.encoder.layers": "visual.transformer.resblocks",
    "text_model.encoder.layers": "transformer.resblocks",
    "vision_model.embeddings.patch_embedding": "visual.conv1",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm": "visual.ln_pre",
    "vision_model.post_layernorm": "visual.ln_post",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.embeddings.token_embedding": "token_embedding",
    "text_model.final_layer_norm": "ln_final",
    "layer_norm": "ln_",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn": "attn",
}


def in_openai_layout(state):
    """Return the weights of transformers' CLIP with OpenAI's names, attention's in one tensor."""
    found = {"text_projection": state.pop("text_projection.weight").T}
    found["visual.proj"] = state.pop("visual_projection.weight").T
    for name, value in state.items():
        for theirs, openais in PARTS.items():
            name = name.replace(theirs, openais)
        found[name] = value
    for name in [name for name in found if ".q_proj." in name]:
        parts = [found.pop(name.replace(".q_", f".{part}_")) for part in "qkv"]
        found[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    return {name: value for name, value in found.items() if "position_ids" not in name}


@pytest.fixture
def make(clip_folder, tmp_path):
    """Return a function that saves a model beside CLIP's vocabulary, and returns both."""
    for name in NAMES:
        shutil.copy(clip_folder / name, tmp_path)

    def save(name="pac.pth", activation="quick_gelu", change=lambda state: {"state_dict": state}):
        config = CLIPConfig.from_pretrained(str(clip_folder))
        for tower in (config.text_config, config.vision_config):
            tower.hidden_act = activation
        model = CLIPModel.from_pretrained(str(clip_folder), config=config).eval()
        torch.save(change(in_openai_layout(model.state_dict())), tmp_path / name)
        return str(tmp_path / name), model

    return save


def as_long_clip(state):
    """The positions are in two tensors: the first 20, and the others."""
    first, later = (state["positional_embedding"].clone() for _ in range(2))
    first[20:] = later[:20] = 9.0
    return {**state, "positional_embedding": first, "positional_embedding_res": later}


@pytest.mark.parametrize(
    ("name", "activation", "change"),
    [
        ("openClip_ViT-L-14.pth", "gelu", lambda state: {"state_dict": state}),
        ("bare.pt", "quick_gelu", lambda state: {**state, "context_length": torch.tensor(24)}),
        ("longclip.pt", "quick_gelu", as_long_clip),
    ],
)
def test_features_of_openais_layout_are_those_of_transformers(
    make, photos, name, activation, change
):
    path, theirs = make(name, activation, change)
    clip, texts = Clip(path), list(PREDICTIONS.values())
    assert clip.image_size == 24 and clip.max_tokens == 24
    ids = [clip.tokenizer(text, truncation=True, max_length=24).input_ids for text in texts]
    expected = [unit(theirs.get_text_features(torch.tensor([text]))) for text in ids]
    assert clip.text_features(texts).numpy() == pytest.approx(np.array(expected), abs=1e-5)
    images = torch.stack([clip.read_image(photo) for photo in photos[:3]])
    expected = np.array([unit(theirs.get_image_features(image[None])) for image in images])
    assert clip.image_features(images).numpy() == pytest.approx(expected, abs=1e-5)
    assert np.ptp(expected, axis=0).max() > 0.01


def test_a_file_alone_takes_the_words_of_the_released_clips(make, clip_folder, monkeypatch):
    path, _ = make()
    expected = Clip(path).text_features(["the cat"])
    damaged = make("damaged.pth", change=lambda s: {k: s[k] for k in s if k != "ln_final.bias"})
    with raises_line(UserError, "in OpenAI's layout", "lacks text_model."):
        Clip(damaged[0])
    for name in NAMES:
        Path(path).with_name(name).unlink()
    with raises_line(UserError, f"clip_model: {CLIP_MODEL} cannot be loaded"):
        Clip(path)
    monkeypatch.setattr("captioning.metrics.clip.CLIP_MODEL", str(clip_folder))
    assert Clip(path).text_features(["the cat"]).equal(expected)


@pytest.fixture
def evaluate(clip_folder, photos, tmp_path):
    """Return a function that scores the captions of four photos by an evaluator."""
    settings = Settings(dict(zip(PREDICTIONS, photos)), cache_dir=tmp_path / "cache", batch_size=3)
    given = PREDICTIONS, REFERENCES, settings
    return lambda name: scored(name, *given, clip_model=str(clip_folder))


@pytest.mark.parametrize(
    ("name", "factor", "names"),
    [
        ("clipscore", 2.5, ["CLIPScore", "RefCLIPScore", "CLIPScore_sentences"]),
        ("pacs", 2, ["PAC-S", "RefPAC-S"]),
    ],
)
def test_clipscore_is_the_formula(evaluate, clip, naive, photos, name, factor, names):
    def text(caption):
        ids = clip.tokenizer("A photo depicts " + caption.replace("\ud83d", "?")).input_ids
        ids = [*ids[:23], ids[-1]] if len(ids) > 24 else ids  # the end token is kept
        return unit(naive.get_text_features(torch.tensor([ids])))

    result = evaluate(name)
    assert list(result.per_caption) == names
    columns = PREDICTIONS.items(), *result.per_caption.values()
    for photo, (image_id, caption), *found in zip(photos, *columns):
        image = unit(naive.get_image_features(clip.read_image(photo)[None].double()))
        texts = [caption, *SENTENCES[image_id]]
        score, *parts = (factor * max(text(each) @ image, 0) for each in texts)
        nearest = max(max(text(caption) @ text(human), 0) for human in REFERENCES[image_id])
        both = 2 * score * nearest / (score + nearest) if score + nearest else 0
        expected = 100 * np.array([score, both, np.mean(parts)])
        assert found == pytest.approx(expected[: len(found)], rel=1e-5, abs=1e-4)
    each = result.per_caption[names[0]]
    assert min(each) == 0 < max(each)  # both sides of the maximum are seen
    assert result.metrics[names[0]] == mean_estimate(each)
    assert result.settings == {f"{name}_truncated": 1, "clip_model": clip.name}


def test_features_are_kept_unless_an_image_or_the_cache_changes(
    evaluate, monkeypatch, photos, tmp_path, capsys
):
    before, cache = evaluate("clipscore"), tmp_path / "cache"
    [file] = cache.iterdir()
    whole = file.read_bytes()
    inside = whole.index(b"features.npy") + 200  # a number among them
    for damaged in (b"", whole[:inside] + b"????" + whole[inside + 4 :]):
        file.write_bytes(damaged)
        assert evaluate("clipscore") == before
        assert f"{file} is damaged" in capsys.readouterr().err
        assert len(np.load(file)["features"]) == 4
    with monkeypatch.context() as patched:
        patched.setattr(Clip, "read_image", lambda *_: 1 / 0)
        assert evaluate("clipscore") == before
        Image.effect_noise((40, 30), 90).convert("RGB").save(photos[0])
        assert "ZeroDivisionError" in evaluate("clipscore").skipped["CLIPScore"]
    shutil.rmtree(cache)
    cache.write_text("a file, no folder")  # so that it cannot be written
    assert evaluate("clipscore").per_caption != before.per_caption
    assert "image features are not cached" in capsys.readouterr().err
