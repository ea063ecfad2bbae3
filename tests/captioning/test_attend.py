"""Attention maps: BLIP's cross-attention, whole words, and the picture of them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from captioning.attend import draw
from captioning.models.score_tokens import ScoredCaption, scored_captions
from decoding import DecodingSettings
from tests.programs import refused, run_program

SETTINGS = DecodingSettings(max_length=9, min_length=6, num_beams=2)


def test_blips_attention_map_is_its_cross_attention(make_captioner, monkeypatch):
    captioner = make_captioner(prompt="a picture ")
    image = torch.randn(1, 3, 48, 48)
    [found] = scored_captions(captioner, image, SETTINGS)
    ids = captioner.generate_details(image, SETTINGS).token_ids[0].clone()
    attention = []

    def record(query, key, value, *settings, **named):
        if key.size(2) == 10:  # [CLS] and 3 by 3 patches; tokens are fewer
            eye = torch.eye(10).expand(*key.shape[:3], 10)
            attention.append(real(query, key, eye))  # the weights themselves
        return real(query, key, value, *settings, **named)

    real = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    embeds = captioner.visual_encoder(image)
    captioner.text_decoder.logits(ids[:, :-1], embeds)
    layers = [weights for weights in attention if weights.size(2) == ids.size(1) - 1]
    expected = torch.stack(layers).mean((0, 2))[0]  # over layers and heads
    expected = expected[len(captioner.prompt_ids) - 1 :, 1:]
    expected = expected / expected.sum(1, keepdim=True)
    assert found.attention_map.shape == (len(found.words), 3, 3)
    assert len(layers) == 2 and len(found.words) == len(expected)
    torch.testing.assert_close(found.attention_map.flatten(1), expected)


@pytest.mark.parametrize("size", [(80, 80), (800, 100)])
def test_frames_are_bright_where_the_attention_is(size, tmp_path):
    weights = torch.zeros(2, 4, 4)
    weights[0, :, 0] = weights[1, :, 3] = 1.0  # the left and the right side of the photo
    path = tmp_path / "map.png"
    words = ["$\\frac$", "100%"]  # matplotlib reads text between dollar signs as TeX
    scored = ScoredCaption(" ".join(words), 0.0, words, torch.ones(2), weights)
    draw(scored, Image.new("RGB", size, (90, 90, 90)), path)
    picture = np.asarray(Image.open(path).convert("L"), dtype=float)
    frames = np.array_split(picture.min(axis=0), 3)  # the darkest pixel of each column
    for frame, left_is_bright in zip(frames[1:], (True, False)):
        left, right = frame[len(frame) // 6], frame[-len(frame) // 6]
        assert (left > right + 40) == left_is_bright and abs(left - right) > 40


def test_an_output_that_is_no_picture_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for output in ("map.jpg", "map", ".", "x/../a.png"):
        command = [tmp_path / "a.png", "--checkpoint", "x.pth", "--output", output]
        refused("captioning.attend", *command, part="has to be another file, which ends in .png")


def test_a_caption_that_was_cut_says_so(trained, scenes, tmp_path):
    run, photo = trained(tmp_path / "run", "sat"), min((scenes / "images").iterdir())
    config, settings = tmp_path / "config.yaml", (run / "config.yaml").read_text()
    settings = settings.replace("min_length: 5", "min_length: 1")
    for max_length in (5, 16):
        config.write_text(settings.replace("max_length: 16", f"max_length: {max_length}"))
        given = (photo, "--config", config, "--output", tmp_path / "map.png")
        outcome = run_program("captioning.attend", "--checkpoint", run, *given)
        assert outcome.code == 0, outcome.err
        assert ("the caption was cut at max_length" in outcome.err) == (max_length == 5)
