"""Losses, captions and gradients stay on the device of their inputs.

The default device is another one, with tensors of which nothing here can be computed.
"""

from functools import partial

import pytest
import torch

from benchmarks.captioners import our_captioner, random_images
from BLIP.compiled_step import CompiledStep, CompiledStepFactory
from decoding import DecodingSettings, sampling
from decoding.caption_generator import CaptionGenerator
from smile import OBJECTIVES, Objective
from smile.hf import last_parts, use_smile
from tests.smile.hf_steps import GPT2, made

# These make tokens or random numbers on the CPU, and move them.
MADE_ON_THE_CPU = (
    (CaptionGenerator, "training_tokens"),
    (CompiledStep, "_fill_cache"),
    (sampling, "_uniform_noise"),
)


def objective(is_fused):
    hidden, weight, labels = torch.randn(3, 7, 8), torch.randn(30, 8), torch.randint(30, (3, 7))
    inputs = [x.requires_grad_() for x in (hidden, weight)]
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 2]] * 3)
    loss = Objective(dict.fromkeys(OBJECTIVES, 0.1), 0.1).with_tokens(0, 1)

    def work():
        if is_fused:
            output = loss.from_hidden(hidden, weight, None, labels, segments)
        else:
            output = loss(hidden @ weight.T, labels, segments)
        return [*output.parts.values(), *torch.autograd.grad(output.loss, inputs)]

    return work


def training_step():
    captioner = our_captioner(True, {"mle": 0.1, "smile": 0.9}).eval()
    photos = random_images(captioner, 2).requires_grad_()

    def work():
        loss = captioner(photos, [["w9 w8", "w7"], ["w10", "w11 w12 w13"]]).loss
        return [loss, *torch.autograd.grad(loss, photos)]

    return work


def captions(factory=None, **settings):
    captioner = our_captioner(True).eval()
    captioner.step_factory = factory or captioner.step_factory
    photos = random_images(captioner, 2)
    chosen = DecodingSettings(**{"max_length": 10, "min_length": 6, **settings})

    def work():
        found = captioner.generate_details(photos, chosen)
        return [x for x in (found.token_ids, found.scores, found.own_scores) if x is not None]

    return work


def likelihoods_and_maps():
    captioner, ids = our_captioner(True).eval(), torch.tensor([5, 6, 7, 8, 9])
    photos = random_images(captioner, 2)

    def work():
        encoded = captioner.encode(photos)
        found = captioner.log_likelihoods(encoded, ids.expand(2, 2, -1))
        return [found, *captioner.score_tokens(encoded[:1], ids)]

    return work


def transformers_model():
    model, batch, *_ = made(GPT2)
    use_smile(model, {"mle": 0.1, "smile": 0.9})

    def work():
        loss = model(**batch, num_items_in_batch=5).loss
        parts = last_parts(model).values()
        return [loss, *parts, *torch.autograd.grad(loss, [*model.parameters()])]

    return work


CASES = {
    "logits": partial(objective, False),
    "hidden states": partial(objective, True),
    "a training step": training_step,
    "groups": partial(captions, num_beams=4, num_beam_groups=2, diversity_penalty=0.5),
    "compiled steps": partial(captions, CompiledStepFactory(), num_beams=3, num_return=2),
    "the best word": partial(captions, sample=True, top_k=1, repetition_penalty=1.2),
    "guidance": partial(captions, guidance_scale=2.0, no_repeat_ngram_size=2),
    "likelihoods and maps": likelihoods_and_maps,
    "transformers": transformers_model,
}


def on_the_cpu(function):
    def call(*args, **kwargs):
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return call


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_nothing_is_created_on_the_default_device(case, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    for place, name in MADE_ON_THE_CPU:
        monkeypatch.setattr(place, name, on_the_cpu(getattr(place, name)))
    work = case()
    torch.manual_seed(0)
    expected = work()
    torch.manual_seed(0)
    with torch.device("meta"):
        found = work()
    torch.testing.assert_close(found, expected)
