"""The prompt of the page's visitor is the model's question."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from app.captions import CaptionService
from app.checkpoints import Checkpoint
from captioning.config import parse_config
from captioning.models.build import captioner_from
from decoding import DecodingSettings
from vlm.batch import ImageBatch
from vlm.prompt import load_prompt_processor

NAME = "Qwen2VLForConditionalGeneration"


@pytest.fixture
def checkpoint(vlm_folder):
    folder, prompt = vlm_folder(NAME)
    keys = {"model": "vlm", "vlm": folder, "prompt": prompt, "augmentation": "none"}
    config = parse_config({**keys, "image_root": "", "ann_root": "", "output_dir": "x"})
    captioner, _ = captioner_from(config, None)
    return Checkpoint("x.pth", "Qwen", "#000", config, captioner.eval(), torch.device("cpu"))


@pytest.fixture
def ask(checkpoint, vlm_photos, tmp_path):
    """Return a function from settings to the answer about the first photo."""
    vlm_photos[0].save(tmp_path / "photo.png")
    service = CaptionService([checkpoint])
    return lambda **settings: service.answer([(str(tmp_path / "photo.png"), settings)])[0]


def test_a_prompt_is_the_question_of_one_caption(checkpoint, vlm_photos, ask):
    captioner = checkpoint.captioner
    settings = {"num_beams": 2, "max_length": 7, "min_length": 3}
    for prompt in (None, "image two right of the red block"):
        (found,) = ask(**settings, prompt=prompt).captions
        asked = prompt or checkpoint.config.prompt
        image = ImageBatch([load_prompt_processor(checkpoint.config.vlm, asked)(vlm_photos[0])])
        expected = captioner.generate_details(image, DecodingSettings(**settings))
        assert found.details.score == pytest.approx(expected.scores.item(), rel=1e-5)
        assert found.details.caption == expected.captions[0][0]
        assert found.record["settings"]["prompt"] == asked
        assert found.details.attention_map is None


def test_a_prompt_that_the_model_cannot_take_is_refused(ask):
    line = ask(prompt=" ").record()["error"]
    assert line.startswith("prompt is empty, but ") and "is a chat model" in line
