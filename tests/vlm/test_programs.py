"""A vision-language model in every program; resuming is bit-identical."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from PIL import Image

from captioning.models.build import load_trained
from decoding import DecodingSettings
from tests.programs import in_every_program, page_record, run_program
from tests.tiny import TINY_RUN
from tests.vlm import folders
from vlm.batch import ImageBatch
from vlm.prompt import PromptProcessor

KEYS = """
model: vlm
vlm: {folder}
prompt: Describe the image.
augmentation: none
lr_schedule: exponential
device: cpu
max_length: 24
min_length: 1
num_beams: 2
metrics: [length, facts]
facts_file: scenes.json
"""


def test_it_works_in_every_program_and_a_resumed_run_is_bit_identical(scenes, tmp_path):
    folders.write("Idefics3ForConditionalGeneration", str(tmp_path / "model"))
    # Most words of the scenes are unknown to the tokenizer: a quick learner would write no others.
    text = TINY_RUN.format(data=scenes).replace("init_lr: 1e-3", "init_lr: 1e-5")
    text += KEYS.format(folder=tmp_path / "model")
    said, page = in_every_program(tmp_path, text, scenes / "images", "prompt=What is there?")
    assert f"no checkpoint: the weights are those of {tmp_path / 'model'}" in said
    assert "had other settings (prompt was 'Describe the image.', is 'What is there?')" in said
    assert page["label"] == "model, MLE+SMILE 0.5:0.5"
    given = ["--config", tmp_path / "run.yaml", "--output_dir", tmp_path / "whole"]
    train = ("captioning.train", *given)
    assert "training cuts" in run_program(*train, "max_tokens=5", "--check").err
    assert run_program(*train, "max_epoch=2").code == 0
    paths = (tmp_path / name / "checkpoint_01.pth" for name in ("run", "whole"))
    resumed, whole = (torch.load(path, weights_only=True)["model"] for path in paths)
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)
    # The prompt of the page's visitor is the model's question.
    run, settings = tmp_path / "run", {"num_beams": 2, "max_length": 7, "min_length": 3}
    found = page_record(run, **settings, prompt="What is red?")
    captioner = load_trained(str(run), None, torch.device("cpu"))[1]
    photo = Image.open(min((scenes / "images").iterdir())).convert("RGB")
    processor = PromptProcessor(captioner.prompt_processor.parts, "What is red?")
    expected = captioner.generate_details(
        ImageBatch([processor(photo)]), DecodingSettings(**settings)
    )
    assert found["caption"] == expected.captions[0][0]
    assert found["score"] == pytest.approx(expected.scores.item(), rel=1e-4)
    line = page_record(run, prompt=" ")["error"]
    assert ": prompt is empty, but " in line and "is a chat model" in line
