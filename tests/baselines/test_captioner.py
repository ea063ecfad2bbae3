"""The captioner's interface: the objective of a batch, and captions of a batch of images."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from baselines.captioner import DECODERS, ClassicCaptioner, coverage_penalty
from baselines.vocabulary import Vocabulary
from decoding import DecodingSettings
from smile import Objective, smile_loss
from tests.programs import raises_line
from tests.tiny import classic_config

WORDS = Vocabulary(["a", "dog", "cat", "runs", "sits", "on", "grass"])


class Pixels(torch.nn.Module):
    """Images (B, 3, 2, 2) as annotations (B, 4, 3): a network would only take time."""

    dim = 3

    def forward(self, image):
        return image.flatten(2).transpose(1, 2)


def make(model, objective="mle", **settings):
    chosen = Objective(objective, label_smoothing=0.0)
    made = ClassicCaptioner(classic_config(model, **settings), Pixels(), WORDS, chosen)
    for parameter in made.decoder.parameters():  # so that images and words matter
        torch.nn.init.normal_(parameter, std=0.7)
    return made.eval()


def images(count=3):
    return torch.randn(count, 3, 2, 2)


CAPTIONS = [["a dog runs", "a cat"], ["a zebra sits on grass", "dog"], ["cat runs", "a dog on cat"]]


@pytest.mark.parametrize("model", DECODERS)
@pytest.mark.parametrize("prompt", ["", "a dog on "])
def test_the_loss_is_the_mean_over_all_words_of_each_caption_alone(model, prompt):
    captioner, image = make(model, {"mle": 0.25, "smile": 0.75}, prompt=prompt), images()
    total, count = 0.0, 0
    for b, k in itertools.product(range(3), range(2)):
        ids = WORDS.encode([prompt + CAPTIONS[b][k]], 40)  # no padding, no other image
        given = len(captioner.prompt_ids)
        logits, _ = captioner.decoder(ids[:, :-1], captioner.encoder(image[b : b + 1]))
        logits, labels = logits[:, given - 1 :], ids[:, given:]
        total += 0.25 * F.cross_entropy(logits[0], labels[0], reduction="sum")
        total += 0.75 * smile_loss(logits, labels, first_token_mle=True, reduction="sum")
        count += labels.numel()
    output = captioner(image, CAPTIONS)
    torch.testing.assert_close(output.loss, total / count)
    assert output.tokens == count and output.parts.keys() == {"mle", "smile"}
    output.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in captioner.parameters())


def test_captions_are_cut_to_max_tokens_and_are_as_many_for_each_image():
    captioner = make("lstm", max_tokens=4)
    _, labels = captioner.predictions(images(1), [["a dog runs on grass"]])
    assert labels.tolist() == WORDS.encode(["a dog"], 9)[:, 1:].tolist()
    for wrong in ([["a"], []], [[], []], [["a"]], [["a"], ["dog", "cat"]]):
        with raises_line(ValueError, "captions for 2 images; give each image the same number"):
            captioner(images(2), wrong)


def test_the_coverage_penalty_is_the_mean_over_the_words_of_captions():
    attention = torch.tensor([[[0.75, 0.25], [0.5, 0.5], [0.9, 0.1]], [[1.0, 0], [0, 1], [1, 0]]])
    labelled = torch.tensor([[True, True, False], [True, True, True]])
    expected = (2 * (0.25**2 + 0.25**2) / 2 + 3 * (1**2 + 0) / 2) / 5
    assert coverage_penalty(attention, labelled).item() == pytest.approx(expected)


@pytest.mark.parametrize("model", ["attn", "sat"])
def test_the_penalty_of_parts_weighted_by_their_tokens_is_that_of_the_whole(model):
    """As in accumulation and in several processes, whose batches have unlike captions."""
    captioner, image = make(model, attention_penalty=0.5), images()
    whole = captioner(image, CAPTIONS)
    parts = [captioner(image[b : b + 1], CAPTIONS[b : b + 1]) for b in range(3)]
    for value in (lambda output: output.loss, lambda output: output.parts["attention"]):
        mean = sum(value(part) * part.tokens for part in parts) / whole.tokens
        torch.testing.assert_close(mean, value(whole))
    captioner.config.attention_penalty = 0.0
    plain = captioner(image, CAPTIONS).loss
    torch.testing.assert_close(whole.loss, plain + 0.5 * whole.parts["attention"])


@pytest.mark.parametrize("model", DECODERS)
def test_no_prompt_and_no_caption_has_an_unknown_word(model):
    with raises_line(ValueError, start="prompt is 'a picture of ', but the vocabulary lacks"):
        make(model, prompt="a picture of ")
    captioner = make(model)
    with torch.no_grad():
        captioner.decoder.head.bias[[WORDS.pad, WORDS.start, WORDS.unknown]] = 100.0
    sampled = DecodingSettings(max_length=12, min_length=1, sample=True, num_return=20, top_k=0)
    ids = captioner.generate_details(images(), sampled).token_ids[:, :, 1:]
    ended = (ids == WORDS.end).cumsum(-1) > 0
    assert not ((ids == WORDS.unknown) | (ids == WORDS.start)).any()
    assert not ((ids == WORDS.pad) & ~ended).any()


@pytest.mark.parametrize("model", ["attn", "sat"])
def test_the_attention_map_is_the_attention_before_each_word(model):
    captioner, image = make(model, prompt="a "), images(1)
    ids = WORDS.encode(["a dog runs"], 9)[0]  # start, a, dog, runs, end
    logits, attention_map = captioner.score_tokens(captioner.encoder(image), ids)
    every, attention = captioner.decoder(ids[None, :-1], captioner.encoder(image))
    known = [n for n in range(len(WORDS)) if n not in (WORDS.pad, WORDS.start, WORDS.unknown)]
    torch.testing.assert_close(logits[:, known], every[0, 1:, known])
    torch.testing.assert_close(attention_map, attention[0, 1:])
    assert attention_map.shape == (3, 4)
    torch.testing.assert_close(attention_map.sum(1), torch.ones(3))
    pooled = make("lstm", prompt="a ")
    assert pooled.score_tokens(pooled.encoder(image), ids)[1] is None
