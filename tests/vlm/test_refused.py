"""Errors of model vlm, each in one line."""

import json
import shutil
from pathlib import Path

import pytest
import transformers
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
needs_transformers = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5, reason="model vlm needs transformers 5.0"
)


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


def json_file(name, edit):
    def change(folder):
        content = json.loads((folder / name).read_text())
        edit(content)
        (folder / name).write_text(json.dumps(content))

    return change


def of_type(name):
    return json_file("config.json", lambda content: content.update(model_type=name))


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:100])


def chat_template(text):
    return lambda folder: (folder / "chat_template.jinja").write_text(text)


def without_a_weight(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights[next(name for name in weights if name.endswith("q_proj.weight"))]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def custom_code(folder):
    (folder / "custom.py").write_text("raise SystemExit('run')\n")
    config = {"model_type": "custom", "auto_map": {"AutoConfig": "custom.CustomConfig"}}
    (folder / "config.json").write_text(json.dumps(config))


WORDS = {f"word{n}": 100 + n for n in range(50)}
MORE_WORDS = json_file("tokenizer.json", lambda content: content["model"]["vocab"].update(WORDS))
WITHOUT_IMAGE = "{% for m in messages %}{{ m.content[-1].text }} {% endfor %}"
UNLOADED = "vlm is FOLDER, which cannot be loaded: "
BROKEN = [
    *((cut(file), UNLOADED) for file in ("config.json", "tokenizer.json", "model.safetensors")),
    (without_a_weight, f"{UNLOADED}1 weights are missing, such as "),
    (custom_code, f"{UNLOADED}The repository FOLDER contains custom code which must be exec"),
    (of_type("vit"), f"{UNLOADED}type vit does not generate text from images"),
    (of_type("blip"), f"{UNLOADED}it is a BLIP: set model: blip, and pretrained to its name"),
    (chat_template("{% for %}"), "the chat template of FOLDER cannot be loaded: "),
    (chat_template("{{ 1 }}"), "the chat template of FOLDER leaves out the assistant"),
    (chat_template(WITHOUT_IMAGE), "FOLDER cannot process a photo of 64 x 48 pixels with this pr"),
    (
        MORE_WORDS,
        "vlm is FOLDER, but its tokenizer has 150 tokens and its model's head 47: they do",
    ),
]


@needs_transformers
@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_what_is_broken_in_a_folder_is_named(vlm_folder, tmp_path, error_of, change, message):
    source, prompt = vlm_folder(CHAT)
    folder = Path(shutil.copytree(source, tmp_path / "broken"))
    change(folder)
    vlm.library.load_parts.cache_clear()
    vlm.prompt.load_prompt_processor.cache_clear()
    line = error_of(vlm=str(folder), prompt=prompt)
    assert line.replace(str(folder), "FOLDER").startswith(message)


@needs_transformers
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


@needs_transformers
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
