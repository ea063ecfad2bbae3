"""A prompt for each image: a batch gives the results of single images."""

import pytest
import torch

from captioning.config import load_config
from captioning.data import Sample, read_annotations
from captioning.models.build import captioner_from
from captioning.models.generation import caption_images
from captioning.models.prompts import caption_lists, check_prompts
from captioning.runtime.errors import UserError
from decoding import DecodingSettings
from tests.programs import raises_line

PROMPTS = ["a big", "the", None, "a star on the", "on the"]
CAPTIONS = [["a star"], ["red shape on the rock"], ["a"], ["the star"], ["big"]]
MODELS = {
    "blip": ["med_config.initializer_range=0.6"],
    "sat": ["model=sat", "encoder=squeezenet1_0", "encoder_weights=none", "encoder_lr=1e-3"],
}
CLASSIC = ["image_size=64", "captions_per_image=1"]
SETTINGS = {
    "greedy": DecodingSettings(num_beams=1, max_length=12),
    "beams": DecodingSettings(num_beams=3, num_return=2, max_length=12),
    "guided": DecodingSettings(num_beams=2, max_length=12, guidance_scale=2.0),
}


@pytest.fixture(params=MODELS)
def captioner(request, scenes_config):
    extra = CLASSIC if request.param == "sat" else []
    config = load_config(scenes_config, ['prompt="a "', *MODELS[request.param], *extra])
    captioner, _ = captioner_from(config, None)
    captioner.image_size = config.image_size
    return captioner.eval()


def images(captioner):
    size = captioner.image_size
    return torch.randn(5, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_batch_gives_what_one_by_one_gives(captioner, name):
    image, settings, own = images(captioner), SETTINGS[name], captioner.prompt_ids
    batch = caption_lists(captioner, captioner, image, settings, PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        # The whole batch has this prompt, as if it were the configuration's.
        captioner.prompt_ids = own if prompt is None else captioner.tokenizer.encode_prompt(prompt)
        alone = captioner.generate_details(image[row : row + 1], settings)
        assert [found["caption"] for found in batch[row]] == alone.captions[0]
        scores = torch.tensor([found["score"] for found in batch[row]], dtype=torch.float64)
        torch.testing.assert_close(scores, alone.scores[0], atol=1e-4, rtol=0)
    captioner.prompt_ids = own


def test_the_loss_of_a_batch_is_the_mean_over_tokens_of_its_images(captioner):
    image, total, tokens = images(captioner), 0.0, 0
    output = captioner(image, CAPTIONS, prompts=PROMPTS)
    own = captioner.prompt, captioner.prompt_ids
    for row, prompt in enumerate(PROMPTS):
        captioner.prompt, captioner.prompt_ids = own
        if prompt is not None:
            captioner.prompt = f"{prompt} "
            captioner.prompt_ids = captioner.tokenizer.encode_prompt(prompt)
        alone = captioner(image[row : row + 1], CAPTIONS[row : row + 1])
        total, tokens = total + alone.loss * alone.tokens, tokens + alone.tokens
    captioner.prompt, captioner.prompt_ids = own
    assert output.tokens == tokens
    torch.testing.assert_close(output.loss, total / tokens)


def test_evaluation_gives_each_image_its_own_prompt_if_there_is_room(
    scenes, scenes_config, tmp_path
):
    config = load_config(scenes_config, ['prompt="a "', *MODELS["blip"], "min_length=1"])
    captioner, _ = captioner_from(config, None)
    samples = [
        sample._replace(prompt=prompt)
        for sample, prompt in zip(read_annotations(scenes / "scenes_val.json"), PROMPTS)
    ]
    device = torch.device("cpu")
    found = caption_images(captioner, samples, config, device, "captions")
    for row in range(5):
        alone = caption_images(captioner, samples[row : row + 1], config, device, "captions")
        assert alone == [found[row]]
    config = config.model_copy(update={"max_length": 5, "max_tokens": 6})
    asked = [Sample("a.jpg", (), 1, "a star on the")]
    for key, room in (("max_length", 5), ("max_tokens", 6)):
        start = "a.jpg: prompt of 5 tokens, which leaves"
        with raises_line(UserError, f"{key} is {room}", start=start):
            check_prompts(asked, captioner, config, key)
        check_prompts(asked, captioner, config.model_copy(update={key: room + 1}), key)
