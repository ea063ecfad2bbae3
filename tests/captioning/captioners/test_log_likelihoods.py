"""Log-likelihoods and guided decoding of all captioners, against the formulas."""

import pytest
import torch

from BLIP.kernels.int8_linear import has_int8
from captioning.config import load_config
from captioning.models.build import captioner_from
from decoding import DecodingSettings, decode
from tests.decoding.references import uncached
from tests.markers import slow
from tests.tiny import CLASSIC

MODELS = {
    "blip": ["vit.embed_dim=32"],
    **{name: [f"model={name}", *CLASSIC, "prompt='a '"] for name in ("rnn", "lstm", "attn", "sat")},
}
NULLS = ["mean", "zeros", slow("learnt")]
WHOLE = {"top_p": 1.0, "top_k": 0, "min_length": 0, "max_length": 14}


@pytest.fixture(params=MODELS)
def captioner(request, scenes_config, tmp_path):
    flags = {"output_dir": str(tmp_path)}
    config = load_config(scenes_config, [*MODELS[request.param], "image_size=64"], flags)
    return captioner_from(config, None)[0].eval()


@pytest.fixture(params=[None, slow(torch.float32), torch.int8])
def copied(request, captioner):
    """The captioner, or its copy for inference, whose head has another layout."""
    if request.param == torch.int8 and not has_int8(torch.device("cpu")):
        pytest.skip("torch has no kernels for 8 bits")
    return captioner if request.param is None else captioner.for_inference(request.param, False)


def test_log_likelihoods_at_a_temperature_are_those_of_the_words_read_again(copied):
    """Compared with `score_tokens`, caption by caption, up to the end token."""
    captioner = copied
    start, end = len(captioner.prompt_ids), captioner.tokenizer.end
    image = torch.randn(2, 3, 64, 64)
    encoded = captioner.encode(image)
    settings = DecodingSettings(sample=True, num_return=3, temperature=1.7, **WHOLE)
    torch.manual_seed(1)
    ids = captioner.generate_from(encoded, settings).token_ids.clone()
    ids[0, 1, start + 2] = end  # ids after the end token have no effect
    found = captioner.log_likelihoods(encoded, ids, 1.7)
    for i in range(2):
        for j in range(3):
            said = ids[i, j, start:].tolist()
            length = said.index(end) + 1 if end in said else len(said)
            logits, _ = captioner.score_tokens(captioner.encode(image[i : i + 1]), ids[i, j])
            expected = (logits / 1.7).log_softmax(-1)[torch.arange(len(said)), ids[i, j, start:]]
            torch.testing.assert_close(
                found[i, j, :length], expected[:length], rtol=1e-4, atol=1e-4
            )
            assert (found[i, j, length:] == 0).all()


def test_log_likelihoods_have_a_gradient_for_every_parameter(captioner):
    encoded = captioner.encode(torch.randn(1, 3, 64, 64))
    ids = captioner.generate_from(
        encoded, DecodingSettings(sample=True, num_return=2, **WHOLE)
    ).token_ids.clone()
    captioner.log_likelihoods(encoded, ids).sum().backward()
    without = [n for n, p in captioner.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []


GUIDED = {"guidance_scale": 2.0}
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
    """A classic captioner with random weights needs large values to tell images apart."""
    return torch.randn(count, 3, 64, 64) * (1 if model == "blip" else 10_000)


def formula(own, other, settings):
    own, other = own.double().log_softmax(-1), other.double().log_softmax(-1)
    guided = other + settings.guidance_scale * (own - other)
    return guided.where(own > float("-inf"), own)


def naive(captioner, own, other, settings):
    """Decode image by image, reading all tokens again at each step."""

    def last(encoded, row):
        return captioner.score_tokens(encoded, torch.cat([row, row[-1:]]))[0][-1]

    def logits(rows):
        return torch.stack([formula(last(own, row), last(other, row), settings) for row in rows])

    words = captioner.tokenizer
    return decode(uncached(logits), captioner.prompt_ids[None], words.end, words.pad, settings)


@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("model", ["blip", "rnn", slow("attn"), "sat"])
def test_guided_captions_are_those_of_the_formula(make, model, null):
    captioner = make(model, f"null_image={null}", "drop_image=0.2")
    for part in captioner.null_image.state_dict().values():
        part.copy_(torch.randn(part.shape))
    encoded = captioner.encode(images(model))
    for search in SEARCHES.values():
        settings = DecodingSettings(**GUIDED, **search, **LENGTHS)
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


@pytest.mark.parametrize("compiled", [False, slow(True)])
def test_copies_for_inference_guide_as_the_captioner_does(make, compiled, quick_compiler):
    captioner, image = make("blip"), torch.randn(3, 3, 64, 64)
    copy = captioner.for_inference(torch.float32, compiled)
    settings = DecodingSettings(**GUIDED, **SEARCHES["beams"], **LENGTHS)
    expected, found = (c.generate_details(image, settings) for c in (captioner, copy))
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    torch.testing.assert_close(found[2:], expected[2:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("model", ["blip", "lstm"])
def test_a_step_with_dropped_images_is_that_of_the_null(make, model, null):
    """The loss is the mean over tokens of the losses of single images, or of the null image."""
    mle = ["objective=mle", "label_smoothing=0.0"]
    captioner = make(model, f"null_image={null}", "drop_image=0.2", *mle).double()
    for part in captioner.null_image.state_dict().values():
        part.copy_(torch.randn(part.shape))
    image, dropped = images(model).double(), torch.tensor([False, True, False])
    found = captioner(image, CAPTIONS, dropped)
    encoder, total = captioner.visual_encoder if model == "blip" else captioner.encoder, 0.0
    for n in range(3):
        null = captioner.encode_null(captioner.encode(image[n : n + 1]))
        with pytest.MonkeyPatch.context() as patch:
            if dropped[n]:
                patch.setattr(encoder, "forward", lambda _, null=null: null)
            alone = captioner(image[n : n + 1], CAPTIONS[n : n + 1])
        total += alone.loss * alone.tokens
    torch.testing.assert_close(found.loss, total / found.tokens)
    plain = captioner(image, CAPTIONS)
    assert torch.equal(
        captioner(image, CAPTIONS, torch.zeros(3, dtype=torch.bool)).loss, plain.loss
    )
    assert not torch.allclose(plain.loss, found.loss, rtol=1e-7)
    found.loss.backward()
    if null == "learnt":
        assert captioner.null_image.vector.grad.abs().sum() > 0
