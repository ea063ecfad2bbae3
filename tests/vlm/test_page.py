"""What a visitor of the page writes as the prompt is the question."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from app.checkpoints import Checkpoint
from app.options import read_options
from app.photos import Limits
from app.service import CaptionService
from captioning.config import parse_config
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError
from decoding import DecodingSettings
from tests.app.captions import caption_of
from vlm.image_batch import ImageBatch
from vlm.prompt import load_prompt_processor

NAME = "Qwen2VLForConditionalGeneration"


@pytest.fixture
def checkpoint(vlm_folder):
    folder, prompt = vlm_folder(NAME)
    keys = {"model": "vlm", "vlm": folder, "prompt": prompt, "augmentation": "none"}
    config = parse_config({**keys, "image_root": "", "ann_root": "", "output_dir": "x"})
    captioner, _ = captioner_from(config, None)
    return Checkpoint("x.pth", "Qwen", "#000", config, captioner.eval())


def test_a_prompt_is_the_question_of_one_caption(checkpoint, vlm_photos):
    service, captioner = CaptionService([checkpoint], Limits()), checkpoint.captioner
    settings = {"num_beams": 2, "max_length": 7, "min_length": 3}
    for prompt in (None, "image two right of the red block"):
        options = read_options({**settings, "prompt": prompt})
        found = caption_of(service, vlm_photos[0], checkpoint, options)
        asked = prompt or checkpoint.config.prompt
        image = ImageBatch([load_prompt_processor(checkpoint.config.vlm, asked)(vlm_photos[0])])
        expected = captioner.generate_details(image, DecodingSettings(**settings))
        assert found.details.score == pytest.approx(expected.scores.item(), rel=1e-5)
        assert found.details.caption == expected.captions[0][0]
        assert found.settings["prompt"] == asked
        assert found.details.attention_map is None


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"prompt": " "}, "prompt is empty, but .* is a chat model"),
        ({"guidance_scale": 2}, r"guidance_scale is 2\.0; Qwen has no guidance"),
    ],
)
def test_options_that_are_refused(options, line, checkpoint, vlm_photos):
    with pytest.raises(UserError, match=f"^{line}"):
        caption_of(
            CaptionService([checkpoint], Limits()), vlm_photos[0], checkpoint, read_options(options)
        )


def test_the_probability_of_a_word_is_that_among_all_tokens(checkpoint, vlm_photos):
    service, captioner = CaptionService([checkpoint], Limits()), checkpoint.captioner
    options = read_options({"num_beams": 1, "max_length": 5, "min_length": 3})
    found = caption_of(service, vlm_photos[1], checkpoint, options).details
    ids = captioner.tokenizer.tokenizer.convert_tokens_to_ids(found.words[0])
    (inputs,) = captioner._inputs(ImageBatch([captioner.prompt_processor(vlm_photos[1])])).items
    with torch.no_grad():
        logits = captioner.model(**inputs).logits[0, -1]
    expected = logits.double().softmax(0)[ids]
    torch.testing.assert_close(found.probabilities[0], expected, rtol=1e-4, atol=1e-7)
