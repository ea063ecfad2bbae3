"""Errors of model vlm, each in one line."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from PIL import Image

import vlm.library
import vlm.prompt
from captioning.config import load_config
from captioning.data.annotations import Sample
from captioning.data.dataset import EvaluationDataset
from captioning.models.build import captioner_from, preprocessing_of
from captioning.runtime.errors import UserError
from tests.programs import raises_line, refused

KEYS = "model: vlm\naugmentation: none\nimage_root: .\nann_root: .\nmax_tokens: 20\n"
CHAT = "Idefics3ForConditionalGeneration"


@pytest.fixture
def write(tmp_path):
    def write(**settings):
        path = tmp_path / "vlm.yaml"
        lines = (f"{key}: {json.dumps(value)}\n" for key, value in settings.items())
        path.write_text(KEYS + "".join(lines))
        return path

    return write


@pytest.fixture
def error_of(write):
    def error_of(**settings):
        config = load_config(write(**settings))
        with raises_line(UserError) as error:
            preprocessing_of(config)
            captioner_from(config, None)
        return str(error.value)

    return error_of


def test_an_older_transformers_is_one_line(write, monkeypatch):
    monkeypatch.setattr(vlm.library, "version", lambda name: "4.15.0")
    line = "error: model vlm needs transformers 5.0 or later, which needs Python 3.10 or later; thi"
    refused("captioning.train", "--config", write(vlm="a/b"), "--device", "cpu", part=line)


def to(new, old=b""):
    """Return an edit of a file: replace its first `old`, by default all of it."""
    return lambda content: content.replace(old, new, 1) if old else new


CODE = b'{"model_type": "custom", "auto_map": {"AutoConfig": "custom.CustomConfig"}}'
WITHOUT_IMAGE = b"{% for m in messages %}{{ m.content[-1].text }} {% endfor %}"
TYPE, WEIGHT, WORDS = b'"model_type": "idefics3"', b"q_proj.weight", b'"vocab": {'
UNLOADED = "vlm is FOLDER, which cannot be loaded: "
BROKEN = [  # a file of the folder, its edit, the beginning of the line
    ("config.json", to(b""), UNLOADED),
    ("model.safetensors", to(b"damaged"), UNLOADED),
    ("model.safetensors", to(b"q_prox.weight", WEIGHT), f"{UNLOADED}1 weights are missing, such"),
    (
        "config.json",
        to(CODE),
        f"{UNLOADED}The repository FOLDER contains custom code which must be",
    ),
    ("config.json", to(b'"model_type": "vit"', TYPE), f"{UNLOADED}type vit does not generate text"),
    ("config.json", to(b'"model_type": "blip"', TYPE), f"{UNLOADED}it is a BLIP: set model: blip"),
    ("chat_template.jinja", to(b"{% for %}"), "the chat template of FOLDER cannot be loaded: "),
    ("chat_template.jinja", to(b"{{ 1 }}"), "the chat template of FOLDER leaves out the assistant"),
    ("chat_template.jinja", to(WITHOUT_IMAGE), "FOLDER cannot process a photo of 64 x 48 pixels "),
    ("tokenizer.json", to(WORDS + b'"far": 149,', WORDS), "vlm is FOLDER, but its tokenizer has 1"),
]


@pytest.mark.parametrize(("file", "edit", "line"), BROKEN)
def test_what_is_broken_in_a_folder_is_named(vlm_folder, tmp_path, error_of, file, edit, line):
    source, prompt = vlm_folder(CHAT)
    folder = Path(shutil.copytree(source, tmp_path / "broken"))
    (folder / file).write_bytes(edit((folder / file).read_bytes()))
    vlm.library.load_parts.cache_clear()
    vlm.prompt.load_prompt_processor.cache_clear()
    assert error_of(vlm=str(folder), prompt=prompt).replace(str(folder), "FOLDER").startswith(line)


def test_what_does_not_suit_a_model_is_named(vlm_folder, error_of):
    for name in ("./nowhere", "nowhere"):
        assert error_of(vlm=name, prompt="x") == f"vlm is {name}: there is no such folder"
    line = error_of(vlm="hf://nobody/nothing", prompt="x")  # without a network
    assert line.startswith("vlm is hf://nobody/nothing, which cannot be loaded: ")
    folder, _ = vlm_folder(CHAT)
    line = f"prompt is empty, but {folder} is a chat model and needs a prompt"
    assert error_of(vlm=folder, prompt=" ") == line
    folder, _ = vlm_folder("VisionEncoderDecoderModel")
    line = f"prompt is 'what', but {folder} has no text input: set prompt to ''"
    assert error_of(vlm=folder, prompt="what") == line
    folder, prompt = vlm_folder("Qwen2VLForConditionalGeneration")
    line = "guidance_scale is 2.0, which model vlm does not support for qwen2_vl, only for gemma3, "
    assert error_of(vlm=folder, prompt=prompt, guidance_scale=2, num_beams=1).startswith(line)


def test_a_photo_that_a_processor_cannot_take_is_named_or_skipped(vlm_folder, write, tmp_path):
    folder, prompt = vlm_folder("Qwen2VLForConditionalGeneration")
    made = preprocessing_of(load_config(write(vlm=folder, prompt=prompt)))
    for name, size in {"dot.png": (1, 1), "line.png": (1, 300)}.items():
        Image.new("RGB", size).save(tmp_path / name)
    samples = [Sample(name, (), name) for name in ("dot.png", "line.png")]
    photos = EvaluationDataset(samples, str(tmp_path), made.evaluation)
    assert photos[0]["image"]["pixel_values"].shape == (16, 24)
    line = f"line.png: {folder} cannot process a photo of 1 x 300 pixels with this prompt: absolute"
    with raises_line(UserError, start=line):
        photos[1]
    skipped = EvaluationDataset(samples, str(tmp_path), made.evaluation, True)[1]
    assert skipped["image"] is None and skipped["unreadable"][0].startswith(line)
