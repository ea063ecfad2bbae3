"""Log-likelihoods, guidance and rerankers of captioners, against plain loops."""

import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F

from captioning.config import load_config
from captioning.data.image import MEAN, STD, load_image
from captioning.metrics.clip import Clip
from captioning.metrics.clipscore import PREFIX
from captioning.metrics.itm import ItmScorer
from captioning.models.build import captioner_from, preprocessing_of
from captioning.models.reranking import Reranker
from decoding import DecodingSettings
from decoding.rerank import Reranking
from decoding.search import decode
from tests.captioning.conftest import save_siglip
from tests.decoding.references import uncached
from tests.markers import slow
from tests.programs import run_program
from tests.tiny import CLASSIC

MODELS = {
    "blip": ["vit.embed_dim=32"],
    **{name: [f"model={name}", *CLASSIC, "prompt='a '"] for name in ("rnn", "lstm", "attn", "sat")},
}
WHOLE = DecodingSettings(num_beams=2, max_length=12, min_length=0, top_p=1.0, top_k=0)
SEARCHES = {"beams": {"num_beams": 3, "num_return": 2}, "greedy": {"num_beams": 1}}
CPU = torch.device("cpu")


@pytest.fixture
def built(scenes_config, tmp_path):
    """Return a function that makes a captioner whose words differ in probability.

    scale: multiplies the decoder's weights, so that words depend on the image.
    """

    def make(model="blip", scale=6):
        flags = {"output_dir": str(tmp_path)}
        config = load_config(scenes_config, [*MODELS[model], "image_size=64"], flags)
        captioner = captioner_from(config, None)[0].eval()
        decoder = captioner.text_decoder if model == "blip" else captioner.decoder
        for parameter in decoder.parameters():
            parameter.data.mul_(scale)
        return captioner

    return make


@pytest.fixture
def image():
    return torch.randn(3, 3, 64, 64)


def generated(captioner, reranking, image):
    reranking = dataclasses.replace(reranking, num_return=reranking.num_candidates)
    found = Reranker(captioner, reranking, CPU).generate_details(image, WHOLE)
    assert (found.rerank_scores.diff(dim=1) <= 1e-6).all()
    return found


def log_p(captioner, encoded, ids, temperature=1.0):
    """The log-probability of each token of one caption's ids, up to its end."""
    own, end = ids[len(captioner.prompt_ids) :], captioner.tokenizer.end
    length = own.tolist().index(end) + 1 if end in own else len(own)
    logits, _ = captioner.score_tokens(encoded, ids)
    return (logits.double() / temperature).log_softmax(-1)[range(length), own[:length]]


@pytest.mark.parametrize("model", MODELS)
def test_log_likelihoods_at_a_temperature_are_those_of_the_words_read_again(built, model):
    captioner, image = built(model, scale=1), torch.randn(2, 3, 64, 64)
    encoded = captioner.encode(image)
    torch.manual_seed(1)
    settings = dataclasses.replace(WHOLE, sample=True, num_return=3, temperature=1.7)
    ids = captioner.generate_from(encoded, settings).token_ids.clone()
    ids[0, 1, len(captioner.prompt_ids) + 2] = captioner.tokenizer.end  # later ids have no effect
    found = captioner.log_likelihoods(encoded, ids, 1.7)
    for i, j in itertools.product(range(2), range(3)):
        expected = log_p(captioner, captioner.encode(image[i : i + 1]), ids[i, j], 1.7).float()
        torch.testing.assert_close(found[i, j, : len(expected)], expected, rtol=1e-4, atol=1e-4)
        assert (found[i, j, len(expected) :] == 0).all()
    found.sum().backward()
    assert all(p.grad is not None for p in captioner.parameters() if p.requires_grad)


def guided_loop(captioner, own, other, settings):

    def last(encoded, row):
        logits = captioner.score_tokens(encoded, torch.cat([row, row[-1:]]))[0][-1]
        return logits.double().log_softmax(-1)

    def guided(row):
        with_image, without = last(own, row), last(other, row)
        logits = without + settings.guidance_scale * (with_image - without)
        return logits.where(with_image > float("-inf"), with_image)

    words, step = captioner.tokenizer, uncached(lambda rows: torch.stack([*map(guided, rows)]))
    return decode(step, captioner.prompt_ids[None], words.end, words.pad, settings)


@pytest.mark.parametrize("model", ["blip", "rnn", slow("attn"), "sat"])
def test_guided_captions_are_those_of_the_formula(built, image, model):
    captioner = built(model)
    # A classic captioner with random weights needs large values to tell images apart.
    encoded = captioner.encode(image * (1 if model == "blip" else 10))
    null = captioner.encode(torch.zeros(1, 3, 64, 64))
    for search in SEARCHES.values():
        settings = DecodingSettings(guidance_scale=2.0, max_length=12, min_length=6, **search)
        found = captioner.generate_from(encoded, settings)
        assert not torch.allclose(found.scores, found.own_scores, atol=1e-3)
        for n in range(3):
            own = encoded[n : n + 1]
            ids, scores = guided_loop(captioner, own, null, settings)
            assert found.token_ids[n, :, : ids.size(2)].tolist() == ids[0].tolist()
            torch.testing.assert_close(found.scores[n], scores[0], rtol=1e-4, atol=1e-4)
            words = log_p(captioner, own, ids[0, 0])
            length = (ids[0, 0] != captioner.tokenizer.end).cumprod(0).sum()
            expected = words.sum().item() / length.item()
            assert found.own_scores[n, 0].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("candidates", ["samples", "beams"])
@pytest.mark.parametrize("model", ["blip", "lstm"])
def test_mutual_information_against_a_loop(built, image, model, candidates):
    """The scores are log p(y | image) - weight * log p(y | null) by the captioner."""
    captioner = built(model)
    found = generated(captioner, Reranking("mmi", 4, candidates, rerank_weight=0.7), image)
    encoded, null = captioner.encode(image), captioner.encode(torch.zeros(1, 3, 64, 64))
    for row, (group, scores) in enumerate(zip(found.token_ids, found.rerank_scores.tolist())):
        own = encoded[row : row + 1]
        pairs = ((log_p(captioner, own, x), log_p(captioner, null, x)) for x in group)
        expected = [(own - 0.7 * other).sum().item() for own, other in pairs]
        assert scores == pytest.approx(expected, rel=1e-3, abs=1e-3)
    if candidates == "beams":
        settings = dataclasses.replace(WHOLE, num_beams=4, num_return=4)
        beams = captioner.generate_details(image, settings)
        assert [sorted(group) for group in found.captions] == [sorted(c) for c in beams.captions]


@pytest.mark.parametrize("is_siglip", [False, True])
def test_clip_reranks_by_its_own_scores(built, image, clip_folder, tmp_path, is_siglip):
    folder = str(save_siglip(tmp_path) if is_siglip else clip_folder)
    found, clip = generated(built(), Reranking("clip", 4, model=folder), image), Clip(folder)
    normalize = clip.preprocess.transforms[-1]
    statistics = (MEAN, STD, normalize.mean, normalize.std)
    old_mean, old_std, mean, std = (torch.tensor(values).view(3, 1, 1) for values in statistics)
    pixels = image * old_std + old_mean
    pixels = F.interpolate(pixels, (clip.image_size,) * 2, mode="bicubic", antialias=True)
    vectors = clip.image_features((pixels - mean) / std)
    for captions, scores, vector in zip(found.captions, found.rerank_scores, vectors):
        texts = clip.text_features([PREFIX + text for text in captions])
        torch.testing.assert_close(scores.float(), texts @ vector)


def test_itm_reranks_by_its_own_scores(built, image, itm_checkpoint):
    found = generated(built(), Reranking("itm", 4, model=str(itm_checkpoint)), image)
    expected = ItmScorer(str(itm_checkpoint)).scores(image, found.captions)
    torch.testing.assert_close(found.rerank_scores.float(), expected)


def test_attention_maps_are_of_the_reranked_caption(scenes, scenes_config, tmp_path):
    keys = ["rerank=mmi", "num_candidates=6", "top_p=1.0", "top_k=0", "rerank_weight=1.0"]
    config = load_config(scenes_config, [*MODELS["blip"], "image_size=48", "seed=5", *keys])
    captioner, path = captioner_from(config, None)[0].eval(), tmp_path / "saved.pth"
    torch.save({"model": captioner.state_dict(), "config": config.model_dump()}, path)
    photo = next((scenes / "images").iterdir())
    command = [photo, "--output", tmp_path / "maps.png", "--checkpoint", path]
    code, out, _ = run_program("captioning.attend", *command)
    image = preprocessing_of(config).one(load_image(photo))
    settings = config.decoding_settings()
    reranked = Reranker(captioner, config.reranking(), CPU).generate_details(image, settings)
    assert code == 0 and out.split() == reranked.captions[0][0].split()
    assert reranked.captions[0] != captioner.generate(image, settings)
