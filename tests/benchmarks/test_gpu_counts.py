"""FLOPs and bytes that are counted for the card's share, against torch's own counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.captioners import our_captioner
from benchmarks.gpu.counts import captioning_phases, encoder_phase, training_flops, weights
from benchmarks.gpu.floors import floor_seconds, with_shares
from BLIP import inference_copy
from decoding import DecodingSettings


def counted(work):
    """What torch counts, with attention as products, which it knows."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.fixture
def captioner(monkeypatch):
    """A tiny one that never ends a caption."""

    def products(query, key, value, mask=None, is_causal=False, dropout=0.0):
        return (query.to(key.dtype) @ key.transpose(2, 3)).softmax(-1) @ value

    monkeypatch.setattr("BLIP.med.attention", products)
    monkeypatch.setattr("BLIP.vit.attention", products)
    captioner = our_captioner(True).eval()
    with torch.no_grad():
        captioner.text_decoder.cls["predictions"].bias[captioner.tokenizer.end] = -1e4
    return captioner


def total(phases):
    return sum(phase.get("times", 1) * sum(phase["flops"].values()) for phase in phases)


def test_the_encoders_flops(captioner):
    image = torch.randn(3, 3, 48, 48)
    with torch.no_grad():
        expected = counted(lambda: captioner.encode(image))
    assert sum(encoder_phase(captioner.visual_encoder, 3)["flops"].values()) == expected


def test_flops_of_captions_to_within_the_past_that_a_beam_looks_at(captioner):
    """A cached step looks at the places of all beams of an image; its own past would do."""
    settings = DecodingSettings(num_beams=3, max_length=12)
    image = torch.randn(2, 3, 48, 48)
    expected = counted(lambda: captioner.generate_details(image, settings))
    assert total(captioning_phases(captioner, 2, settings)) == pytest.approx(expected, rel=0.06)


def test_flops_of_a_training_step(captioner):
    image, texts = torch.randn(2, 3, 48, 48), [["w9 " * 15], ["w8 " * 15]]
    length = 4 + 15  # the prompt before, the end not asked for the word after it
    with torch.no_grad():
        forward = counted(lambda: captioner.predictions(image, texts))
    found = training_flops(captioner, 2, 2 * length, 2 * (length + 1))
    assert found / 3 == pytest.approx(forward, rel=0.08)


def test_bytes_are_those_of_the_weights_as_the_copy_has_them(captioner):
    settings = DecodingSettings(num_beams=1, max_length=6)
    for dtype, width in ((torch.float32, 4.0), (torch.bfloat16, 2.0)):
        copy = inference_copy(captioner, dtype)
        encoder = sum(weight.numel() for _, weight in weights(copy.visual_encoder))
        read = captioning_phases(copy, 1, settings)[0]["bytes"]
        assert encoder * width < read < encoder * width + 4 * (3 * 48 * 48 + 10 * 32) + 1


def test_a_floor_is_the_larger_of_arithmetic_and_bytes():
    ceilings = {"flops": {"bf16": 100.0, "fp32": 10.0}, "bytes": 50.0}
    phases = [
        {"flops": {"bf16": 200, "fp32": 10}, "bytes": 100},
        {"flops": {"bf16": 1}, "bytes": 25, "times": 4},
    ]
    assert floor_seconds(phases, ceilings) == 3.0 + 4 * 0.5
    assert floor_seconds(phases, {"flops": {"bf16": 100.0}, "bytes": 50.0}) is None
    row = {"phases": {"ours": phases}, "contenders": {"ours": {"median": 10.0}}}
    assert with_shares(row, ceilings)["contenders"]["ours"]["share"] == 0.5
