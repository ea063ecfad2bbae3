"""A prompt for each image: a batch gives the results of single images."""

import pytest
import torch

from captioning.config import load_config
from captioning.data.annotations import Sample, read_annotations
from captioning.models.build import captioner_from
from captioning.models.generation import caption_images
from captioning.models.prompts import caption_lists, check_prompts
from captioning.runtime.errors import UserError
from decoding import DecodingSettings
from tests.programs import raises_line
from tests.tiny import CLASSIC

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
        """As if the prompt were the configuration's."""
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
