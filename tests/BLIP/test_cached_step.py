"""Decoding with the cache against a step without one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from BLIP.cached_step import CachedStep
from BLIP.inference import inference_copy
from decoding import DecodingSettings, decode


class UncachedStep:
    """The decoder's logits of every row's whole past, with the image repeated for each row."""

    def __init__(self, decoder, image_embeds):
        self.decoder, self.images, self.past = decoder, image_embeds, None

    def __call__(self, tokens, rows):
        flat = tokens.flatten(0, 1)
        if rows is not None:
            image = rows // (len(self.past) // len(self.images))
            self.images = self.images[image[:, 0]]
            flat = torch.cat([self.past[rows.flatten()], flat], dim=1)
        self.past = flat
        repeated = self.images.repeat_interleave(tokens.size(1), dim=0)
        logits = self.decoder.logits(flat, torch.ones_like(flat), repeated)
        return logits[:, -1].unflatten(0, tokens.shape[:2])


@pytest.fixture(scope="module")
def captioners(make_captioner):
    """Captioners by the bias of the end token, each with its copy for inference."""
    found = {}
    for bias in (-2.0, 1.0, 2.5):
        torch.manual_seed(0)
        captioner = make_captioner()
        captioner.text_decoder.cls["predictions"].bias.data[captioner.tokenizer.end] = bias
        found[bias] = captioner, inference_copy(captioner)
    return found


@st.composite
def problems(draw):
    max_length = draw(st.integers(6, 24))
    sample = draw(st.booleans())
    beams = draw(st.integers(1, 5))
    chosen = DecodingSettings(
        num_beams=beams,
        num_return=draw(st.integers(1, beams)),
        sample=sample,
        max_length=max_length,
        min_length=draw(st.integers(0, max_length)),
        length_penalty=draw(st.sampled_from([0.5, 1.0, 2.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.4])),
    )
    prompt = draw(st.integers(1, 5))
    return draw(st.sampled_from([-2.0, 1.0, 2.5])), draw(st.integers(1, 5)), prompt, chosen


@settings(max_examples=50, deadline=None)
@given(problems())
def test_tokens_and_scores_are_those_without_a_cache(captioners, problem):
    ends, images, prompt_length, chosen = problem
    captioner, quick = captioners[ends]
    words = captioner.tokenizer
    embeds = torch.randn(images, 10, 32)
    prompt = torch.randint(5, len(words), (images, prompt_length))
    steps = [CachedStep(c.text_decoder, embeds, chosen.max_length) for c in (captioner, quick)]
    decoded = []
    for step in [UncachedStep(captioner.text_decoder, embeds), *steps]:
        torch.manual_seed(7)
        decoded.append(decode(step, prompt, words.end, words.pad, chosen))
    for other in decoded[1:]:
        assert other.token_ids.tolist() == decoded[0].token_ids.tolist()
        torch.testing.assert_close(other.scores, decoded[0].scores, atol=2e-5, rtol=2e-5)
