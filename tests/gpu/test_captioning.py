"""A captioner's encoder, decoder and captions against the CPU's; compiled ones against eager."""

import copy
import functools

import pytest
import torch

from benchmarks.captioners import our_captioner, random_images
from benchmarks.training import random_captions
from decoding import DecodingSettings
from tests.gpu.card import DEVICE, REHEARSAL, relative_error

# How far the scores of two captions may be apart for their difference to be a tie.
TIES = {torch.float32: 1e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def without_tf32(monkeypatch):
    """Compute convolutions in full float32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def scaled_captioner(tiny):
    """Return a captioner with larger weights of the decoder, or many tokens have equal scores."""
    captioner = our_captioner(tiny).eval()
    with torch.no_grad():
        for parameter in captioner.text_decoder.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6.0 if tiny else 2.0)
    return captioner


@functools.cache
def captioners():
    on_cpu = scaled_captioner(REHEARSAL)
    return on_cpu, copy.deepcopy(on_cpu).to(DEVICE)


def compare(found, expected, tie, what):
    """Assert that tokens are equal, except where scores show a tie."""
    width = max(found.token_ids.size(2), expected.token_ids.size(2))
    ours, theirs = (
        torch.nn.functional.pad(x.token_ids[:, 0].cpu(), (0, width - x.token_ids.size(2)))
        for x in (found, expected)
    )
    differ = (ours != theirs).any(1)
    apart = (found.scores[:, 0].cpu() - expected.scores[:, 0].cpu()).abs()
    print(f"{what}: {int(differ.sum())} captions differ, scores by at most {apart.max():.1e}")
    assert len(theirs.unique(dim=0)) > 1 and torch.isfinite(apart).all()
    assert not (apart[differ] > tie).any()
    assert differ.float().mean() <= 0.5  # not all are ties


def test_encoder_decoder_and_gradients_are_those_of_the_cpu():
    found = []
    for captioner in captioners():
        device = next(captioner.parameters()).device
        image, captions = 3 * random_images(captioner, 2).to(device), random_captions(REHEARSAL, 2)
        names = ("visual_encoder.blocks.0.attn.qkv.weight", "text_decoder.bert.embeddings")
        chosen = [p for n, p in captioner.named_parameters() if n.startswith(names)]
        encoded, loss = captioner.encode(image), captioner(image, captions).loss
        logits = captioner.predictions(image, captions)[0]
        found.append([encoded, logits, loss, *torch.autograd.grad(loss, chosen)])
    errors = [relative_error(b, a) for a, b in zip(*found)]
    print(f"encoder, decoder, loss, gradients: {errors}")
    assert max(errors[:2]) < 1e-3 and max(errors) < 5e-3


def test_beam_search_has_the_tokens_of_the_cpu():
    on_cpu, on_card = captioners()
    image = 3 * random_images(on_cpu, 3 if REHEARSAL else 4)
    for beams in (1, 3):
        settings = DecodingSettings(num_beams=beams, max_length=8 if REHEARSAL else 16)
        expected = on_cpu.generate_details(image, settings)
        for what, captioner in {"fp32": on_card, "the copy": on_card.for_inference()}.items():
            found = captioner.generate_details(image.to(DEVICE), settings)
            compare(found, expected, TIES[torch.float32], f"{beams} beams, {what}")


def test_compiled_steps_have_the_tokens_of_eager_ones():
    """In fp32 only for a tiny captioner, which compiles in seconds."""
    compiled_like_eager(scaled_captioner(True).to(DEVICE), torch.float32, 3, 8)
    batch, length = (3, 8) if REHEARSAL else (64, 20)
    compiled_like_eager(captioners()[1], torch.bfloat16, batch, length)


def compiled_like_eager(captioner, dtype, batch, length):
    """The CUDA graph is replayed for a second batch and for a smaller one."""
    torch._dynamo.reset()
    settings = DecodingSettings(num_beams=3, max_length=length)
    image = 3 * random_images(captioner, batch).to(DEVICE)
    eager, compiled = captioner.for_inference(dtype), captioner.for_inference(dtype, True)
    with torch.inference_mode():
        encoded = [(eager.encode(x), compiled.encode(x)) for x in (image, image.flip(0))]
    assert max(relative_error(b, a) for a, b in encoded) < TIES[dtype]
    for a, b in (*encoded, tuple(x[:-1] for x in encoded[0])):
        expected, found = eager.generate_from(a, settings), compiled.generate_from(b, settings)
        compare(found, expected, TIES[dtype], f"{dtype}, batch {len(a)}")
