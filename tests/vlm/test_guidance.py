"""Guidance of vision-language models, compared with transformers' own and with the formula."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from decoding import DecodingSettings
from tests.vlm import folders
from tests.vlm.test_collate import CHATS, of_the_processor
from vlm.image_batch import ImageBatch
from vlm.library import model_of, parts_of
from vlm.prompt import GUIDED

SCALE = 2.5
GREEDY = DecodingSettings(max_length=7, min_length=2, num_beams=1, guidance_scale=SCALE)
SAMPLES = replace(GREEDY, sample=True, num_return=2, top_p=0.95, repetition_penalty=1.2)
KINDS = {kind.replace("_", "") for kind in GUIDED}
NAMES = [name for name in folders.PROCESSORS if name.partition("For")[0].lower() in KINDS]


def sharpened(model):
    """Random weights of a larger scale, so that guidance changes captions."""
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data *= 3
    return model


def prompt_without_image(name, vlm_folder):
    folder, prompt = vlm_folder(name)
    words = parts_of(folder).tokenizer
    chat = ("user", *prompt.split(), "<end>", "<start>", "assistant")
    text = chat if name in CHATS else prompt.split()
    return torch.tensor([words.convert_tokens_to_ids(["<start>", *text])])


@torch.no_grad()
def greedy_by_formula(captioner, image, unconditional):
    """The ids of one photo's caption, its score, and its score without guidance."""
    ids, scores, own = [], [], []
    while len(ids) < GREEDY.max_length and folders.END not in ids:
        conditioned = captioner.score_tokens(image, torch.tensor([*ids, 0]))[0][-1].log_softmax(-1)
        inputs = torch.cat([unconditional, torch.tensor([ids], dtype=torch.int64)], 1)
        alone = captioner.model(input_ids=inputs).logits[0, -1].log_softmax(-1)
        guided = (alone + SCALE * (conditioned - alone)).log_softmax(-1)
        allowed = guided.clone()
        allowed[folders.END] = guided[folders.END] if len(ids) >= GREEDY.min_length else -torch.inf
        ids.append(int(allowed.argmax()))
        scores.append(guided[ids[-1]])
        own.append(conditioned[ids[-1]])
    return ids, torch.stack(scores).mean(), torch.stack(own).mean()


@pytest.fixture
def guided(make_vlm, vlm_photos):
    """Return a function of a family's name: its captioner and a batch of photos."""

    def make(name):
        captioner = make_vlm(name)
        sharpened(captioner.model)
        return captioner, ImageBatch([captioner.prompt_processor(photo) for photo in vlm_photos])

    return make


@pytest.mark.parametrize("settings", [GREEDY, SAMPLES], ids=["greedy", "samples"])
@pytest.mark.parametrize("name", NAMES)
def test_guided_captions_are_those_of_transformers(name, settings, guided, vlm_folder, vlm_photos):
    captioner, image = guided(name)
    inputs = dict(of_the_processor(name, vlm_folder, vlm_photos, "left"))
    if name == "GitForCausalLM":
        inputs = {k: v[:, :-1] if v.dim() == 2 else v for k, v in inputs.items()}
    rows = len(vlm_photos) * settings.num_return
    torch.manual_seed(3)
    expected = sharpened(model_of(vlm_folder(name)[0], weights=True)).generate(
        **inputs,
        guidance_scale=SCALE,
        negative_prompt_ids=prompt_without_image(name, vlm_folder).expand(rows, -1),
        num_return_sequences=settings.num_return,
        min_new_tokens=settings.min_length,
        max_new_tokens=settings.max_length,
        do_sample=settings.sample,
        top_p=settings.top_p,
        top_k=settings.top_k,
        repetition_penalty=settings.repetition_penalty,
    )[:, inputs["input_ids"].size(1) :]
    torch.manual_seed(3)
    found = captioner.generate_details(image, settings)
    ended = (expected == folders.END).cumsum(1) - (expected == folders.END).int() > 0
    assert found.token_ids.flatten(0, 1).equal(expected.masked_fill(ended, -1))


@pytest.mark.parametrize("name", NAMES)
def test_guided_captions_and_scores_follow_the_formula(name, guided, vlm_folder):
    captioner, image = guided(name)
    found = captioner.generate_details(image, GREEDY)
    unconditional = prompt_without_image(name, vlm_folder)
    for n in range(len(image)):
        ids, *scores = greedy_by_formula(captioner, image[n : n + 1], unconditional)
        assert found.token_ids[n, 0, : len(ids)].tolist() == ids
        of_photo = torch.stack([found.scores[n, 0], found.own_scores[n, 0]]).float()
        torch.testing.assert_close(of_photo, torch.stack(scores), rtol=1e-4, atol=1e-5)
    assert (found.scores - found.own_scores).abs().max() > 1e-3  # guidance has an effect


def test_scale_1_is_plain_whatever_the_model_comes_with(guided):
    captioner, image = guided(NAMES[0])
    plain = replace(GREEDY, guidance_scale=1.0)
    expected = captioner.generate_details(image, plain)
    captioner.model.generation_config.guidance_scale = 3.0
    found = captioner.generate_details(image, plain)
    assert found.token_ids.equal(expected.token_ids) and found.scores.equal(expected.scores)
