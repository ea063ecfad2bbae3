"""A prompt for each photo: in a batch as if it were the prompt of the configuration."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from decoding import SettingsError
from tests.vlm.test_collate import CAPTIONS
from tests.vlm.test_parity import BEAMS, NAMES, sharpened
from vlm.image_batch import ImageBatch
from vlm.prompt import GUIDED_FAMILIES, NO_TEXT_FAMILY, PromptProcessor

PROMPTS = ["describe two small disc on snow", None, "image of the night"]
FIXED = ("VisionEncoderDecoder", "Florence2")  # no text, or a task instead of a prompt
ASKED = [name for name in NAMES if not name.startswith(FIXED)]


@pytest.mark.parametrize("name", ASKED)
def test_captions_and_loss_are_those_of_each_prompt_alone(name, make_vlm, vlm_photos):
    captioner = make_vlm(name)
    sharpened(captioner.model)
    processor = captioner.prompt_processor
    image = ImageBatch([processor(photo, text) for photo, text in zip(vlm_photos, PROMPTS)])
    together = captioner.generate_details(image, BEAMS)
    output, total = captioner(image, CAPTIONS), 0.0
    for n, text in enumerate(PROMPTS):
        own = processor if text is None else PromptProcessor(processor.parts, text)
        one = ImageBatch([own(vlm_photos[n])])
        alone = captioner.generate_details(one, BEAMS)
        assert together.captions[n] == alone.captions[0]
        torch.testing.assert_close(together.scores[n], alone.scores[0], rtol=1e-4, atol=1e-5)
        part = captioner(one, CAPTIONS[n : n + 1])
        total = total + part.loss * part.tokens
    torch.testing.assert_close(output.loss, total / output.tokens, rtol=1e-4, atol=1e-5)


def test_prompts_that_cannot_be_used_are_one_line(make_vlm, vlm_photos):
    photo = vlm_photos[0]
    git = make_vlm("GitForCausalLM").prompt_processor
    room = git.parts.config.max_position_embeddings
    short = PromptProcessor(
        git.parts, git.prompt, need=room - git(photo, "describe")["input_ids"].size(1)
    )
    short(photo, "describe")
    with pytest.raises(ValueError, match=f"has {room}: shorten the prompt 'describe two"):
        short(photo, PROMPTS[0] + " left right above below")
    name = next(name for name in NAMES if name.partition("For")[0].lower() in GUIDED_FAMILIES)
    captioner = make_vlm(name)
    processor = captioner.prompt_processor
    room = processor.parts.config.get_text_config().max_position_embeddings
    with pytest.raises(ValueError, match=f"has {room}: shorten the prompt 'disc disc"):
        processor(photo, "disc " * room)
    with pytest.raises(SettingsError, match="needs one prompt for all images of a batch"):
        items = [captioner.prompt_processor(photo, text) for text in PROMPTS]
        settings = replace(BEAMS, num_beams=1, num_return=1, guidance_scale=2.0)
        captioner.generate_details(ImageBatch(items), settings)
    fixed = make_vlm("VisionEncoderDecoderModel").prompt_processor
    assert fixed.family == NO_TEXT_FAMILY
    with pytest.raises(ValueError, match="has no text input"):
        fixed(photo, "describe")
