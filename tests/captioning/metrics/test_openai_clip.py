"""CLIP in the layout of OpenAI, as PAC-S has it, against the same weights in transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPConfig, CLIPModel

from captioning.metrics.clip import Clip
from captioning.metrics.clipscore import ClipScore, PacScore
from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.metrics.model_files import CLIP_MODEL
from captioning.runtime.errors import UserError
from tests.captioning.clip_references import unit
from tests.captioning.conftest import make_up
from tests.programs import raises_line

PREDICTIONS = {7: "the cat", "b": "a dog " * 20, 9: "and the dog's ball"}
REFERENCES = {7: ["a cat", "the dog"], "b": ["the dog"], 9: ["a ball", "the cat"]}


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
    """Return a function that saves a model beside CLIP's vocabulary, and gives both."""
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((clip_folder / name).read_bytes())
    words = Clip(str(clip_folder)).model.text_model.embeddings.token_embedding.num_embeddings

    def save(name="pac.pth", activation="quick_gelu", change=lambda state: {"state_dict": state}):
        text, vision = (
            {"hidden_size": width, "intermediate_size": 96, "num_hidden_layers": layers,
             "num_attention_heads": width // 64, "hidden_act": activation}
            for width, layers in ((64, 3), (128, 2))
        )  # fmt: skip
        text.update(vocab_size=words, max_position_embeddings=24, eos_token_id=words - 1)
        vision.update(image_size=24, patch_size=8)
        sizes = {"text_config_dict": text, "vision_config_dict": vision, "projection_dim": 16}
        model = CLIPModel(CLIPConfig(**sizes)).eval()
        make_up(model, 0.08)
        torch.save(change(in_openai_layout(model.state_dict())), tmp_path / name)
        return str(tmp_path / name), model

    return save


@pytest.mark.parametrize(
    ("name", "activation", "change"),
    [
        ("openClip_ViT-L-14.pth", "gelu", lambda state: {"state_dict": state}),
        ("bare.pt", "quick_gelu", lambda state: {**state, "context_length": torch.tensor(24)}),
    ],
)
def test_features_are_those_of_transformers(make, photos, name, activation, change):
    path, theirs = make(name, activation, change)
    clip = Clip(path)
    assert clip.image_size == 24 and clip.max_tokens == 24 and clip.width == 16
    ids, _ = clip.encode(list(PREDICTIONS.values()))
    expected = [unit(theirs.get_text_features(torch.tensor([text]))) for text in ids]
    assert clip.text_features(ids).numpy() == pytest.approx(np.array(expected), abs=1e-5)
    images = torch.stack([clip.read_image(photo) for photo in photos[:3]])
    expected = np.array([unit(theirs.get_image_features(image[None])) for image in images])
    assert clip.image_features(images).numpy() == pytest.approx(expected, abs=1e-5)
    assert np.ptp(expected, axis=0).max() > 0.01


def test_pacs_is_clipscore_with_a_weight_of_two(photos, tmp_path, make):
    """CLIPScore, whose weight is 2.5, is compared with its formula in test_clip.py."""
    path, _ = make()
    settings = Settings(images=dict(zip(PREDICTIONS, photos)), cache_dir=tmp_path / "cache")
    captions = CaptionSet(PREDICTIONS, REFERENCES)
    evaluator = PacScore(settings, clip_model=path)
    assert evaluator.unavailable() == {}
    found = evaluator.evaluate(captions)
    plain = ClipScore(settings, clip_model=path).evaluate(captions).per_caption
    for score, ref, clip, ref_clip, _ in zip(*found.per_caption.values(), *plain.values()):
        assert score == pytest.approx(clip * 2 / 2.5)
        nearest = ref_clip * clip / (2 * clip - ref_clip) if clip else 0  # the other of the mean
        both = 2 * score * nearest / (score + nearest) if clip else 0
        assert ref == pytest.approx(both)
    assert list(found.per_caption) == ["PAC-S", "RefPAC-S"] and found.metrics["PAC-S"].value > 0
    assert found.settings["clip_model"].startswith(path) and found.settings["pacs_truncated"] == 1


def without(name):
    return lambda state: {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: {"weight": torch.zeros(2)}, "not a CLIP with a vision transformer"),
        (lambda _: {"state_dict": [1]}, "contains no weights by name"),
        (without("visual.proj"), "not a CLIP with a vision transformer"),
        (lambda state: {**state, "text_projection": torch.zeros(3)}, "not a CLIP with a vision"),
    ],
)
def test_another_file_is_reported_before_captions_are_made(make, change, message):
    path, _ = make(change=change)
    reasons = PacScore(Settings(images={}), clip_model=path).unavailable()
    assert reasons.keys() == {"PAC-S", "RefPAC-S"}
    assert message in reasons["PAC-S"] and path in reasons["PAC-S"]


@pytest.mark.parametrize(
    ("more", "line"),
    [({}, "pac.pth: lacks"), ({"ln_final.bias": torch.zeros(3)}, "pac.pth: the sizes do not fit")],
)
def test_missing_weights_or_another_size_are_one_line(make, more, line):
    path, _ = make(change=lambda state: {**without("ln_final.bias")(state), **more})
    with raises_line(UserError, line):
        Clip(path)


def test_a_file_alone_takes_the_words_of_the_released_clips(make, clip_folder, monkeypatch):
    path, _ = make()
    names = ("vocab.json", "merges.txt")
    for name in names:
        Path(path).with_name(name).unlink()
    with pytest.raises(UserError, match=f"next to {path}, and none of {CLIP_MODEL}.*: put both"):
        Clip(path)
    hub = {(CLIP_MODEL, name): clip_folder / name for name in names}
    monkeypatch.setattr("captioning.metrics.model_files.hub_file", lambda *file: hub[file])
    assert Clip(path).encode(["the cat"]) == Clip(str(clip_folder)).encode(["the cat"])
