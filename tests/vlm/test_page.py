"""The prompt of the page's visitor is the model's question."""

import pytest

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
        ({"guidance_scale": 2}, r"Qwen: guidance_scale is 2\.0; it has no guidance"),
    ],
)
def test_options_that_the_model_cannot_take_are_refused(options, line, checkpoint, vlm_photos):
    with pytest.raises(UserError, match=f"^{line}"):
        service = CaptionService([checkpoint], Limits())
        caption_of(service, vlm_photos[0], checkpoint, read_options(options))
