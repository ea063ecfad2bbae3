"""Captions of many images, in order, unreadable images left out; a prompt for each image."""

import json
import shutil

import pytest
import torch

from captioning.config import load_config
from captioning.data.annotations import Sample, read_annotations
from captioning.data.sources import read_split
from captioning.models.build import captioner_from
from captioning.models.generation import caption_images
from captioning.models.prompts import caption_lists, check_prompts, scored_lists
from captioning.runtime.errors import UserError
from decoding import DecodingSettings, Generated
from tests.programs import raises_line
from tests.tiny import CLASSIC


@pytest.fixture
def caption(scenes_config):
    """Return a function that captions the test split."""

    def call(*overrides):
        config = load_config(scenes_config, overrides)
        captioner, _ = captioner_from(config, None)
        samples = read_split(config, "test")
        return caption_images(captioner, samples, config, torch.device("cpu"), "captions")

    return call


def test_images_that_cannot_be_read_have_no_caption(caption, scenes, tmp_path, capsys):
    root = shutil.copytree(scenes, tmp_path / "scenes")
    for number in (29, 33):
        (root / "images" / f"scene_{number:06d}.png").write_bytes(b"not an image")
    settings = ("skip_bad_images=true", "num_workers=2", "eval_batch_size=3")
    results = caption(f"image_root={root}", *settings)
    assert [result["image_id"] for result in results] == [30, 31, 32, 34, 35]
    assert all(isinstance(result["caption"], str) for result in results)
    assert "2 of 7 images could not be read" in capsys.readouterr().err


def test_captions_that_were_cut_are_marked_and_counted(caption, capsys, monkeypatch):
    """A caption was cut if it has none of the end tokens."""
    ids = torch.tensor([[[5, 6, 2, -1]], [[5, 6, 5, 6]], [[5, 9, -1, -1]]])
    lists = scored_lists(Generated([["a"], ["b"], ["c"]], ids, torch.zeros(3, 1)), [2, 9])
    made = lambda _, __, images, *___: lists[: len(images)]  # noqa: E731
    monkeypatch.setattr("captioning.models.generation.caption_lists", made)
    found = [result.get("cut") for result in caption("eval_batch_size=3")]
    assert found == [None, True, None, None, True, None, None]
    assert "2 of 7 captions were cut at max_length" in capsys.readouterr().err


def test_captions_do_not_depend_on_the_batch_size_and_candidates_are_kept(caption):
    assert caption("rerank=mmi", "rerank_weight=0.0") == caption()  # plain decoding
    keys = ["rerank=mmi", "num_candidates=3", "top_p=1.0", "top_k=0"]
    found = caption(*keys, "eval_batch_size=3", "save_candidates=true")
    assert json.loads(json.dumps(found)) == found
    alone = caption(*keys, "eval_batch_size=1")
    for result, expected in zip(found, alone):
        candidates = result.pop("candidates")
        scores = [candidate["rerank_score"] for candidate in candidates]
        assert result == expected and candidates[0]["caption"] == result["caption"]
        assert len(scores) == 3 and scores == sorted(scores, reverse=True)
        assert all(isinstance(candidate["score"], float) for candidate in candidates)


@pytest.mark.slow
def test_compiled_captions_are_the_same(caption, quick_compiler):
    compiled = caption("eval_batch_size=3", "compile=true")
    assert quick_compiler.frame_count > 1  # the encoder and the step
    assert compiled == caption("eval_batch_size=3")


PROMPTS = ["a big", "the", None, "a star on the", "on the"]
CAPTIONS = [["a star"], ["red shape on the rock"], ["a"], ["the star"], ["big"]]
MODELS = {
    "blip": ["med_config.initializer_range=0.6"],
    "sat": ["model=sat", *CLASSIC, "image_size=64"],
}
BEAMS = DecodingSettings(num_beams=3, num_return=2, max_length=12)
GUIDED = DecodingSettings(num_beams=1, max_length=12, guidance_scale=2.0)


@pytest.fixture(params=MODELS)
def world(request, scenes_config):
    """Return a captioner, images, and a function that gives it the prompt of one of these."""
    config = load_config(scenes_config, ['prompt="a "', *MODELS[request.param]])
    captioner = captioner_from(config, None)[0].eval()
    own = captioner.prompt, captioner.prompt_ids

    def prompted(prompt):
        captioner.prompt, captioner.prompt_ids = own
        if prompt is not None:
            captioner.prompt = f"{prompt} "
            captioner.prompt_ids = captioner.tokenizer.encode_prompt(prompt)
        return captioner

    return captioner, torch.randn(5, 3, config.image_size, config.image_size), prompted


@pytest.mark.parametrize("settings", [BEAMS, GUIDED], ids=["beams", "guided"])
def test_a_batch_gives_what_one_by_one_gives(world, settings):
    captioner, image, prompted = world
    batch = caption_lists(captioner, captioner, image, settings, PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        alone = prompted(prompt).generate_details(image[row : row + 1], settings)
        assert [found["caption"] for found in batch[row]] == alone.captions[0]
        scores = torch.tensor([found["score"] for found in batch[row]], dtype=torch.float64)
        torch.testing.assert_close(scores, alone.scores[0], atol=1e-4, rtol=0)


def test_the_loss_of_a_batch_is_the_mean_over_tokens_of_its_images(world):
    captioner, image, prompted = world
    output, total, tokens = captioner(image, CAPTIONS, prompts=PROMPTS), 0.0, 0
    for row, prompt in enumerate(PROMPTS):
        alone = prompted(prompt)(image[row : row + 1], CAPTIONS[row : row + 1])
        total, tokens = total + alone.loss * alone.tokens, tokens + alone.tokens
    assert output.tokens == tokens
    torch.testing.assert_close(output.loss, total / tokens)


def test_evaluation_gives_each_image_its_own_prompt_if_there_is_room(scenes, scenes_config):
    config = load_config(scenes_config, ['prompt="a "', *MODELS["blip"], "min_length=1"])
    captioner, _ = captioner_from(config, None)
    samples = read_annotations(scenes / "scenes_val.json")
    samples = [sample._replace(prompt=prompt) for sample, prompt in zip(samples, PROMPTS)]
    given = (config, torch.device("cpu"), "captions")
    found = caption_images(captioner, samples, *given)
    alone = [caption_images(captioner, [sample], *given) for sample in samples]
    assert alone == [[result] for result in found]
    asked = [Sample("a.jpg", (), 1, "a star on the")]
    for key, room in (("max_length", 5), ("max_tokens", 6)):
        start = "a.jpg: prompt of 5 tokens, which leaves"
        with raises_line(UserError, f"{key} is {room}", start=start):
            check_prompts(asked, captioner, config.model_copy(update={key: room}), key)
        check_prompts(asked, captioner, config.model_copy(update={key: room + 1}), key)
