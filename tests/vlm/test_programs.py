"""A vision-language model in every program; resuming is bit-identical."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from PIL import Image

from captioning.models.build import load_trained
from decoding import DecodingSettings
from tests.programs import captioned_everywhere, page_record, run_program
from tests.smile import tiny_vlm
from tests.tiny import TINY_RUN
from vlm.batch import ImageBatch
from vlm.prompt import load_prompt_processor

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


@pytest.fixture(scope="module")
def results(scenes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    tiny_vlm.write(str(folder / "model"))
    config, run, photos = folder / "tiny.yaml", folder / "run", scenes / "images"
    config.write_text(TINY_RUN.format(data=scenes) + KEYS.format(folder=folder / "model"))
    train = ["train", "--config", config, "--output_dir"]
    best, out = run / "checkpoint_best.pth", folder / "captions.jsonl"
    shown = told = ""
    for (name, *arguments), code in [
        ([*train, run, "max_tokens=5", "--check"], 0),
        ([*train, run, "max_epoch=1", "checkpoint_every=2"], 0),
        ([*train, run, "max_epoch=2", "checkpoint_every=2"], 0),
        ([*train, run, "max_epoch=2", "prompt=What is there?"], 2),
        ([*train, run, "max_epoch=2", "--evaluate", "--eval_split=test"], 0),
        ([*train, folder / "whole", "max_epoch=2"], 0),
        (["caption", run, photos, "--out", out, "--batch_size", "3"], 0),
        (["calibrate", "--checkpoint", best], 0),
        (["report", run, "--output", folder / "report.html"], 0),
        (["attend", "--checkpoint", best, min(photos.iterdir())], 2),
    ]:
        outcome = run_program(f"captioning.{name}", *arguments)
        assert outcome.code == code, (name, outcome.err)
        shown, told = shown + outcome.out, told + outcome.err
    return folder, shown, told


def test_a_resumed_run_is_bit_identical_and_has_the_same_prompt(results):
    folder, _, said = results
    assert "training cuts" in said.splitlines()[1]
    assert f"no checkpoint: the weights are those of {folder / 'model'}" in said
    assert f"resuming from {folder / 'run' / 'checkpoint_00.pth'}" in said
    paths = (folder / name / "checkpoint_01.pth" for name in ("run", "whole"))
    resumed, whole = (torch.load(path, weights_only=True)["model"] for path in paths)
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)
    assert "had other settings (prompt was 'Describe the image.', is 'What is there?')" in said


def test_it_is_captioned_scored_and_reported_the_same_everywhere(results):
    folder, shown, said = results
    label = captioned_everywhere(folder)["label"]
    assert label == "model, MLE+SMILE 0.5:0.5" and label in (folder / "report.html").read_text()
    assert "Cap. Len." in said and "negative log-likelihood" in shown
    assert "gives no attention maps" in said


def test_the_prompt_of_the_pages_visitor_is_the_models_question(results, scenes):
    run, settings = results[0] / "run", {"num_beams": 2, "max_length": 7, "min_length": 3}
    found = page_record(run, **settings, prompt="What is red?")
    config, captioner = load_trained(str(run), None, torch.device("cpu"))
    photo = Image.open(min((scenes / "images").iterdir())).convert("RGB")
    image = ImageBatch([load_prompt_processor(config.vlm, "What is red?")(photo)])
    expected = captioner.generate_details(image, DecodingSettings(**settings))
    assert found["caption"] == expected.captions[0][0]
    assert found["score"] == pytest.approx(expected.scores.item(), rel=1e-4)
    line = page_record(run, prompt=" ")["error"]
    assert ": prompt is empty, but " in line and "is a chat model" in line
