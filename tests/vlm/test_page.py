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


def test_a_visitors_prompt_is_the_question_of_one_caption(vlm_folder, vlm_photos, tmp_path):
    folder, prompt = vlm_folder("Qwen2VLForConditionalGeneration")
    keys = {"model": "vlm", "vlm": folder, "prompt": prompt, "augmentation": "none"}
    config = parse_config({**keys, "image_root": "", "ann_root": "", "output_dir": "x"})
    captioner = captioner_from(config, None)[0].eval()
    checkpoint = Checkpoint("x.pth", "Qwen", "#000", config, captioner, torch.device("cpu"))
    vlm_photos[0].save(tmp_path / "photo.png")

    def ask(**settings):
        return CaptionService([checkpoint]).answer([(str(tmp_path / "photo.png"), settings)])[0]

    settings = {"num_beams": 2, "max_length": 7, "min_length": 3}
    for text in (None, "image two right of the red block"):
        (found,) = ask(**settings, prompt=text).captions
        image = ImageBatch([load_prompt_processor(folder, text or prompt)(vlm_photos[0])])
        expected = captioner.generate_details(image, DecodingSettings(**settings))
        assert found.details.score == pytest.approx(expected.scores.item(), rel=1e-5)
        assert found.details.caption == expected.captions[0][0]
        assert found.record["settings"]["prompt"] == (text or prompt)
        assert found.details.attention_map is None
    # Another of the model's end tokens also ends a caption, here any word.
    captioner.tokenizer.end_tokens = [*range(4, 30)]
    (found,) = ask(num_beams=1, max_length=7, min_length=1).captions
    assert len(found.record["words"]) < 6 and not found.record["cut"]
    line = ask(prompt=" ").record()["error"]
    assert line.startswith("prompt is empty, but ") and "is a chat model" in line
