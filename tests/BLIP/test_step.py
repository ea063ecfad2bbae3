"""Decoding with a cache gives the tokens of decoding without; static steps compile once."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from BLIP.compiled_step import CompiledStepFactory, append_to_static
from BLIP.step import CachedStep
from decoding import DecodingSettings
from decoding.search import decode

ENDS = (-2.0, 1.0, 2.5)  # biases of the end token


class UncachedStep:
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
        logits = self.decoder.logits(flat, repeated)
        return logits[:, -1].unflatten(0, tokens.shape[:2])


@pytest.fixture(scope="module")
def captioners(make_captioner):
    found = {}
    for bias in ENDS:
        torch.manual_seed(0)
        captioner = make_captioner()
        captioner.text_decoder.cls["predictions"].bias.data[captioner.tokenizer.end] = bias
        found[bias] = captioner, captioner.for_inference()
    return found


SEARCHES = (
    {"num_beams": 1},
    {"num_beams": 3, "num_return": 2, "repetition_penalty": 1.4},
    {"num_beams": 5, "length_penalty": 2.0, "min_length": 0},
    {"sample": True, "num_return": 2},
)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("prompt_length", [1, 4])
@pytest.mark.parametrize("bias", ENDS)
def test_tokens_and_scores_are_those_without_a_cache(captioners, search, prompt_length, bias):
    chosen = DecodingSettings(**{"max_length": 12, "min_length": 6, **search})
    captioner, quick = captioners[bias]
    decoder, words = captioner.text_decoder, captioner.tokenizer
    static = CompiledStepFactory()
    static.append = append_to_static  # not compiled
    for batch in (3, 1):  # of which the second uses a part of the static cache
        embeds = torch.randn(batch, 10, 32)
        prompt = torch.randint(5, len(words), (batch, prompt_length))
        steps = [CachedStep(c.text_decoder, embeds, chosen.max_length) for c in (captioner, quick)]
        steps += [UncachedStep(decoder, embeds), static(decoder, embeds, chosen.max_length)]
        decoded = []
        for step in steps:
            torch.manual_seed(7)
            decoded.append(decode(step, prompt, words.end, words.pad, chosen))
        for other in decoded[1:]:
            assert other.token_ids.tolist() == decoded[0].token_ids.tolist()
            torch.testing.assert_close(other.scores, decoded[0].scores, atol=2e-5, rtol=2e-5)


BEAM = DecodingSettings(num_beams=3, num_return=2, max_length=16, min_length=5)


def test_one_compilation_serves_all_batches_and_all_copies(captioners):
    """A copy is made at every validation: the step must not be compiled for each."""
    captioner, _ = captioners[1.0]  # it ends captions at different steps
    counter = CompileCounterWithBackend("eager")
    captions = []
    for _ in range(2):
        quick = captioner.for_inference()
        quick.step_factory = CompiledStepFactory(backend=counter)
        for batch in (4, 4, 2):
            images = torch.randn(batch, 3, 48, 48, generator=torch.Generator().manual_seed(3))
            made, expected = (c.generate_details(images, BEAM) for c in (quick, captioner))
            assert made.token_ids.tolist() == expected.token_ids.tolist()
            captions.append(made.captions)
    assert counter.frame_count == 1
    assert captions[0] == captions[3]
