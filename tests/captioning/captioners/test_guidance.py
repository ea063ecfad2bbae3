"""Captioners decode with two streams, and train with images dropped, as the formulas say."""

from dataclasses import replace

import pytest
import torch

from BLIP.med import Attention
from captioning.config import load_config
from captioning.models.build import captioner_from
from captioning.models.score_tokens import scored_captions
from decoding import DecodingSettings, decode
from decoding.guided import add_noise
from tests.captioning.captioners.test_log_likelihoods import MODELS
from tests.decoding.test_beam import uncached

METHODS = {"guidance": {"guidance_scale": 2.0}, "contrast": {"contrastive_alpha": 1.0}}
LENGTHS = {"max_length": 12, "min_length": 6}
SEARCHES = {"beams": {"num_beams": 3, "num_return": 2}, "greedy": {"num_beams": 1}}
CAPTIONS = [["a dog", "a red cat"], ["two birds", "a ball on the grass"], ["a cat", "a man"]]


@pytest.fixture
def make(scenes_config, tmp_path):
    def make(model, *overrides):
        flags = {"output_dir": str(tmp_path)}
        config = load_config(scenes_config, [*MODELS[model], "image_size=64", *overrides], flags)
        captioner = captioner_from(config, None)[0].eval()
        decoder = captioner.text_decoder if model == "blip" else captioner.decoder
        for parameter in decoder.parameters():
            parameter.data.mul_(6)  # so that words depend on the image
        return captioner

    return make


def images(model, count=3):
    """A random network of a classic captioner hardly tells usual images apart."""
    return torch.randn(count, 3, 64, 64) * (1 if model == "blip" else 10_000)


def formula(own, other, settings):
    own, other = own.double().log_softmax(-1), other.double().log_softmax(-1)
    if settings.contrastive_alpha:
        alpha = settings.contrastive_alpha
        plausible = own.exp() >= settings.contrastive_beta * own.exp().amax(-1, keepdim=True)
        return ((1 + alpha) * own - alpha * other).where(plausible, own - 1e4)
    guided = other + settings.guidance_scale * (own - other)
    return guided.where(own > float("-inf"), own)


def naive(captioner, own, other, settings):
    """Decode image by image, reading all tokens again at each step."""

    def logits(rows):
        return torch.stack(
            [
                formula(
                    *(
                        captioner.score_tokens(x, torch.cat([row, row[-1:]]))[0][-1]
                        for x in (own, other)
                    ),
                    settings,
                )
                for row in rows
            ]
        )

    words = captioner.tokenizer
    return decode(uncached(logits), captioner.prompt_ids[None], words.end, words.pad, settings)


@pytest.mark.parametrize("null", ["zeros", "mean", "learnt"])
@pytest.mark.parametrize("model", ["blip", "rnn", "attn", "sat"])
def test_guided_captions_are_those_of_the_formula(make, model, null):
    captioner = make(model, f"null_image={null}", "drop_image=0.2")
    for part in captioner.null_image.state_dict().values():
        part.copy_(torch.randn(part.shape))
    encoded = captioner.encode(images(model))
    for search in SEARCHES.values():
        settings = DecodingSettings(**METHODS["guidance"], **search, **LENGTHS)
        found = captioner.generate_from(encoded, settings)
        assert not torch.allclose(found.scores, found.own_scores, atol=1e-3)
        for n in range(3):
            if null == "mean":
                other = captioner.encode(captioner.null_image.image[None])
            else:
                other = torch.zeros_like(encoded[:1])
                other += captioner.null_image.vector.data if null == "learnt" else 0
            ids, scores = naive(captioner, encoded[n : n + 1], other, settings)
            width = ids.size(2)
            assert found.token_ids[n, :, :width].tolist() == ids[0].tolist()
            torch.testing.assert_close(found.scores[n], scores[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", ["blip", "rnn", "sat"])
def test_contrasted_captions_are_those_of_the_formula(make, model):
    """Whatever the batch, and in the scores of attend and the page, too."""
    captioner, image = make(model), images(model)
    for search in SEARCHES.values():
        settings = DecodingSettings(**METHODS["contrast"], **search, **LENGTHS)
        found = captioner.generate_details(image, settings)
        assert not torch.allclose(found.scores, found.own_scores, atol=1e-3)
        scored = scored_captions(captioner, image, settings)
        for n in range(3):
            own, other = (
                captioner.encode(x) for x in (image[n, None], add_noise(image, settings)[n, None])
            )
            ids, scores = naive(captioner, own, other, settings)
            assert found.token_ids[n, :, : ids.size(2)].tolist() == ids[0].tolist()
            torch.testing.assert_close(found.scores[n], scores[0], rtol=1e-4, atol=1e-4)
            assert scored[n].caption == found.captions[n][0]
            assert scored[n].own_score == pytest.approx(found.own_scores[n, 0].item())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_own_scores_are_those_of_plain_decoding(make, model, method):
    """Where guidance leaves the caption as it was."""
    captioner, image = make(model), torch.randn(2, 3, 64, 64)
    settings = DecodingSettings(num_beams=1, length_penalty=0.8, **LENGTHS)
    plain = captioner.generate_details(image, settings)
    assert plain.own_scores is None
    slight = {"guidance_scale": 1 + 1e-6, "contrastive_alpha": 0.0}
    if method == "contrast":
        slight = {"contrastive_alpha": 1e-6, "contrastive_beta": 0.0}
    found = captioner.generate_details(image, replace(settings, **slight))
    assert found.token_ids.tolist() == plain.token_ids.tolist()
    torch.testing.assert_close(found.own_scores, plain.scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("search", [*SEARCHES.values(), {"sample": True, "num_return": 3}])
@pytest.mark.parametrize("model", ["blip", "sat"])
def test_a_scale_of_1_and_an_alpha_of_0_are_plain_decoding_to_the_bit(make, model, search):
    captioner, image = make(model), images(model)
    none = {"guidance_scale": 1.0, "contrastive_alpha": 0.0}
    found = []
    for more in ({}, {**none, "contrastive_beta": 0.9, "contrastive_noise": 3}):
        torch.manual_seed(1)
        settings = DecodingSettings(**search, **LENGTHS, **more)
        found.append(captioner.generate_details(image, settings))
    plain, other = found
    assert torch.equal(plain.token_ids, other.token_ids)
    assert torch.equal(plain.scores, other.scores) and other.own_scores is None


@pytest.mark.parametrize("null", ["zeros", "mean"])
def test_an_image_is_encoded_once_and_the_null_once_for_all(make, null, monkeypatch):
    captioner, encoded, keys = make("blip", f"null_image={null}"), [], []
    captioner.visual_encoder.register_forward_hook(lambda m, i, o: encoded.append(len(o)))
    keys_values = Attention.keys_values

    def counted(self, source, *more):
        if self is captioner.text_decoder.layers[0].crossattention:
            keys.append(len(source))
        return keys_values(self, source, *more)

    monkeypatch.setattr(Attention, "keys_values", counted)
    captioner.generate_details(images("blip"), DecodingSettings(guidance_scale=2.0, **LENGTHS))
    assert encoded == ([3, 1] if null == "mean" else [3])
    assert keys == [3, 1, 3]  # the last of the own scores


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_copies_for_inference_follow(make, method, compiled, quick_compiler):
    captioner, image = make("blip"), torch.randn(3, 3, 64, 64)
    copy = captioner.for_inference(torch.float32, compiled)
    settings = DecodingSettings(**METHODS[method], **SEARCHES["beams"], **LENGTHS)
    expected, found = (c.generate_details(image, settings) for c in (captioner, copy))
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    torch.testing.assert_close(found[2:], expected[2:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("null", ["zeros", "mean", "learnt"])
@pytest.mark.parametrize("model", ["blip", "lstm"])
def test_a_step_with_dropped_images_is_that_of_the_null(make, model, null):
    """The loss by hand: that of each image or the null alone, weighted by its tokens."""
    mle = ["objective=mle", "label_smoothing=0.0"]
    captioner = make(model, f"null_image={null}", "drop_image=0.2", *mle).double()
    for part in captioner.null_image.state_dict().values():
        part.copy_(torch.randn(part.shape))
    image, dropped = images(model).double(), torch.tensor([False, True, False])
    found = captioner(image, CAPTIONS, dropped)
    words, prompt, total = captioner.tokenizer, len(captioner.prompt_ids), 0.0
    for n in range(3):
        encoded = captioner.encode(image[n : n + 1])
        encoded = captioner.encode_null(encoded) if dropped[n] else encoded
        for text in CAPTIONS[n]:
            ids = words.encode([captioner.prompt + text], 40)[0]
            if model == "blip":
                logits = captioner.text_decoder.logits(
                    ids, torch.ones_like(ids), encoded, prompt - 1
                )
            else:
                logits = captioner.decoder(ids[None, :, :-1], encoded, prompt)[0][0]
            total += torch.nn.functional.cross_entropy(
                logits[0, : ids.size(1) - prompt], ids[0, prompt:], reduction="sum"
            )
    torch.testing.assert_close(found.loss, total / found.tokens)
    plain = captioner(image, CAPTIONS)
    assert torch.equal(
        captioner(image, CAPTIONS, torch.zeros(3, dtype=torch.bool)).loss, plain.loss
    )
    assert not torch.allclose(plain.loss, found.loss, rtol=1e-7)
    found.loss.backward()
    if null == "learnt":
        assert captioner.null_image.vector.grad.abs().sum() > 0
