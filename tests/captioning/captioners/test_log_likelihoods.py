"""Log-likelihoods and guided decoding of all captioners, against the formulas."""

import itertools

import pytest
import torch

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
WHOLE = {"top_p": 1.0, "top_k": 0, "min_length": 0, "max_length": 14}


GUIDED = {"guidance_scale": 2.0, "max_length": 12, "min_length": 6}
SEARCHES = {"beams": {"num_beams": 3, "num_return": 2}, "greedy": {"num_beams": 1}}


@pytest.fixture
def make(scenes_config, tmp_path):
    """Return a function that builds a captioner.

    scale: multiplies the decoder's weights, so that words depend on the image.
    """

    def build(model, scale=6):
        flags = {"output_dir": str(tmp_path)}
        config = load_config(scenes_config, [*MODELS[model], "image_size=64"], flags)
        captioner = captioner_from(config, None)[0].eval()
        decoder = captioner.text_decoder if model == "blip" else captioner.decoder
        for parameter in decoder.parameters():
            parameter.data.mul_(scale)
        return captioner

    return build


@pytest.mark.parametrize("model", MODELS)
def test_log_likelihoods_at_a_temperature_are_those_of_the_words_read_again(make, model):
    """Compared with `score_tokens`, caption by caption, up to the end token."""
    captioner = make(model, scale=1)
    start, end = len(captioner.prompt_ids), captioner.tokenizer.end
    image = torch.randn(2, 3, 64, 64)
    encoded = captioner.encode(image)
    torch.manual_seed(1)
    settings = DecodingSettings(sample=True, num_return=3, temperature=1.7, **WHOLE)
    ids = captioner.generate_from(encoded, settings).token_ids.clone()
    ids[0, 1, start + 2] = end  # ids after the end token have no effect
    found = captioner.log_likelihoods(encoded, ids, 1.7)
    for i, j in itertools.product(range(2), range(3)):
        said = ids[i, j, start:]
        length = said.tolist().index(end) + 1 if end in said else len(said)
        logits, _ = captioner.score_tokens(captioner.encode(image[i : i + 1]), ids[i, j])
        expected = (logits / 1.7).log_softmax(-1)[range(length), said[:length]]
        torch.testing.assert_close(found[i, j, :length], expected, rtol=1e-4, atol=1e-4)
        assert (found[i, j, length:] == 0).all()
    found.sum().backward()
    assert all(p.grad is not None for p in captioner.parameters() if p.requires_grad)


def images(model):
    """A classic captioner with random weights needs large values to tell images apart."""
    return torch.randn(3, 3, 64, 64) * (1 if model == "blip" else 10)


def naive(captioner, own, other, settings):
    """Decode image by image, reading all tokens again at each step."""

    def last(encoded, row):
        logits = captioner.score_tokens(encoded, torch.cat([row, row[-1:]]))[0][-1]
        return logits.double().log_softmax(-1)

    def guided(row):
        with_image, without = last(own, row), last(other, row)
        logits = without + settings.guidance_scale * (with_image - without)
        return logits.where(with_image > float("-inf"), with_image)

    words, step = captioner.tokenizer, uncached(lambda rows: torch.stack([*map(guided, rows)]))
    return decode(step, captioner.prompt_ids[None], words.end, words.pad, settings)


def own_score(captioner, encoded, ids):
    """Return the mean log-probability of a caption's tokens, with its end, without guidance."""
    start, end = len(captioner.prompt_ids), captioner.tokenizer.end
    length = ids.tolist().index(end) if end in ids else len(ids)
    said = ids[start : length + 1]
    logprobs = captioner.score_tokens(encoded, ids)[0].double().log_softmax(-1)
    return logprobs[range(len(said)), said].sum().item() / length


@pytest.mark.parametrize("model", ["blip", "rnn", slow("attn"), "sat"])
def test_guided_captions_are_those_of_the_formula(make, model):
    captioner = make(model)
    encoded = captioner.encode(images(model))
    for search in SEARCHES.values():
        settings = DecodingSettings(**GUIDED, **search)
        found = captioner.generate_from(encoded, settings)
        assert not torch.allclose(found.scores, found.own_scores, atol=1e-3)
        other = captioner.encode(torch.zeros(1, 3, 64, 64))
        for n in range(3):
            ids, scores = naive(captioner, encoded[n : n + 1], other, settings)
            assert found.token_ids[n, :, : ids.size(2)].tolist() == ids[0].tolist()
            torch.testing.assert_close(found.scores[n], scores[0], rtol=1e-4, atol=1e-4)
            own = own_score(captioner, encoded[n : n + 1], ids[0, 0])
            assert found.own_scores[n, 0].item() == pytest.approx(own, rel=1e-4)
