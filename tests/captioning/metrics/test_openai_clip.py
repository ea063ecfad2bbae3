"""CLIP in the layout of OpenAI, as PAC-S has it, against that model built of parts of torch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from captioning.metrics.clip import Clip
from captioning.metrics.clipscore import ClipScore, PacScore
from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.metrics.model_files import CLIP_MODEL
from captioning.runtime.errors import UserError
from tests.captioning.conftest import make_up

PREDICTIONS = {7: "the cat", "b": "a dog " * 20, 9: "and the dog's ball"}
REFERENCES = {7: ["a cat", "the dog"], "b": ["the dog"], 9: ["a ball", "the cat"]}


class Block(nn.Module):
    """Attention and an MLP before whose inputs a LayerNorm stands."""

    def __init__(self, width, activation):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, width // 64, batch_first=True)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Module()
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(width, 96), nn.Linear(96, width)
        self.activation = activation

    def forward(self, x, mask=None):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp.c_proj(self.activation(self.mlp.c_fc(self.ln_2(x))))


def transformer(width, layers, activation):
    module = nn.Module()
    module.resblocks = nn.Sequential(*(Block(width, activation) for _ in range(layers)))
    return module


class OpenAiClip(nn.Module):
    """Images of 24 by 24 in patches of 8; texts of 24 tokens; vectors of 16."""

    def __init__(self, words, activation):
        super().__init__()
        self.token_embedding = nn.Embedding(words, 64)
        self.positional_embedding = nn.Parameter(torch.zeros(24, 64))
        self.transformer = transformer(64, 3, activation)
        self.ln_final = nn.LayerNorm(64)
        self.text_projection = nn.Parameter(torch.zeros(64, 16))
        self.logit_scale = nn.Parameter(torch.zeros(()))
        self.visual = visual = nn.Module()
        visual.conv1 = nn.Conv2d(3, 128, 8, 8, bias=False)
        visual.class_embedding = nn.Parameter(torch.zeros(128))
        visual.positional_embedding = nn.Parameter(torch.zeros(10, 128))
        visual.ln_pre, visual.ln_post = nn.LayerNorm(128), nn.LayerNorm(128)
        visual.transformer = transformer(128, 2, activation)
        visual.proj = nn.Parameter(torch.zeros(128, 16))

    def text(self, ids):
        x = self.token_embedding(torch.tensor([ids])) + self.positional_embedding[: len(ids)]
        mask = torch.full((len(ids), len(ids)), -torch.inf, dtype=x.dtype).triu(1)
        for block in self.transformer.resblocks:
            x = block(x, mask)
        return unit(self.ln_final(x)[0, -1] @ self.text_projection)

    def image(self, pixels):
        visual = self.visual
        places = visual.conv1(pixels[None].to(visual.proj.dtype)).flatten(2).transpose(1, 2)
        first = visual.class_embedding.expand(1, 1, -1)
        x = visual.ln_pre(torch.cat([first, places], 1) + visual.positional_embedding)
        x = visual.transformer.resblocks(x)
        return unit(visual.ln_post(x[0, 0]) @ visual.proj)


def unit(vector):
    return (vector / vector.norm()).detach().numpy()


def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


@pytest.fixture
def make(clip_folder, tmp_path):
    """Return a function that saves a model beside CLIP's vocabulary, and gives both."""
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((clip_folder / name).read_bytes())
    words = Clip(str(clip_folder)).model.text_model.embeddings.token_embedding.num_embeddings

    def save(name="pac.pth", activation=quick_gelu, change=lambda state: {"state_dict": state}):
        model = OpenAiClip(words, activation).eval()
        make_up(model, 0.08)
        model.visual.proj.data.neg_()  # towards the captions, as it happens
        torch.save(change(model.state_dict()), tmp_path / name)
        return str(tmp_path / name), model.double()

    return save


@pytest.mark.parametrize(
    ("name", "activation", "change"),
    [
        ("openClip_ViT-L-14.pth", nn.functional.gelu, lambda state: {"state_dict": state}),
        ("bare.pt", quick_gelu, lambda state: {**state, "context_length": torch.tensor(24)}),
    ],
)
def test_features(make, photos, name, activation, change):
    path, naive = make(name, activation, change)
    clip = Clip(path)
    assert clip.image_size == 24 and clip.max_tokens == 24 and clip.width == 16
    ids, _ = clip.encode(list(PREDICTIONS.values()))
    expected = np.array([naive.text(text) for text in ids])
    assert clip.text_features(ids).numpy() == pytest.approx(expected, abs=1e-5)
    images = torch.stack([clip.read_image(photo) for photo in photos[:3]])
    expected = np.array([naive.image(image) for image in images])
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
    plain = ClipScore(settings, clip_model=path).evaluate(captions).per_image
    for score, ref, clip, ref_clip, _ in zip(*found.per_image.values(), *plain.values()):
        assert score == pytest.approx(clip * 2 / 2.5)
        nearest = ref_clip * clip / (2 * clip - ref_clip) if clip else 0  # the other of the mean
        both = 2 * score * nearest / (score + nearest) if clip else 0
        assert ref == pytest.approx(both)
    assert list(found.per_image) == ["PAC-S", "RefPAC-S"] and found.metrics["PAC-S"].value > 0
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


@pytest.mark.parametrize("more", [{}, {"ln_final.bias": torch.zeros(3)}])
def test_weights_of_another_size_are_one_line(make, more):
    path, _ = make(change=lambda state: {**without("ln_final.bias")(state), **more})
    with pytest.raises(UserError, match=r"pac\.pth: (lacks|the sizes do not fit)") as caught:
        Clip(path)
    assert "\n" not in str(caught.value)


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
