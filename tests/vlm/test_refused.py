"""Errors of model vlm, each in one line."""

import json
import shutil
from pathlib import Path

import pytest

import vlm.library
from captioning.config import load_config
from captioning.models.build import captioner_from, preprocessing_of
from captioning.runtime.errors import UserError
from tests.programs import one_error_line, raises_line, run_program

KEYS = "model: vlm\naugmentation: none\nimage_root: .\nann_root: .\nmax_tokens: 20\n"
CHAT, PLAIN = "Idefics3ForConditionalGeneration", "VisionEncoderDecoderModel"


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


REFUSED = {
    "model=vlm": "vlm is missing: the folder or hub name of a model of transformers",
    "augmentation=blip": "augmentation is blip, which model vlm does not support; set it to none",
    "num_beams=4 num_beam_groups=2": "num_beam_groups is 2, which model vlm does not support; set",
    "reward={cider:1}": "reward is {'cider': 1.0}, which model vlm does not support; unset it",
    "compile=true": "compile is True, which model vlm does not support; set it to False",
    "rerank=mmi": "rerank is mmi, which model vlm does not support; unset it",
    "guidance_scale=2": "guidance_scale is 2.0 with num_beams 3, but model vlm has no guided beams",
    "drop_image=0.2": "drop_image is 0.2, which model vlm does not support; set it to 0.0",
    "model=blip": "vlm is for model vlm; this one is blip",
    "model=sat lora={r:4} vlm=": "lora is for models blip and vlm; this one is sat",
    "model=blip lora={load_in_4bit:true} vlm=": "lora.load_in_4bit is true, which is for model vlm",
    "lora={rank:4}": "unknown key 'lora.rank'",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_a_key_that_does_not_fit_model_vlm_is_named(write, overrides):
    settings = {} if overrides == "model=vlm" else {"vlm": "a/b"}
    overrides_list = [text.replace(":", ": ") for text in overrides.split()]
    with raises_line(UserError, f": {REFUSED[overrides]}"):
        load_config(write(**settings), overrides_list)


def test_an_older_transformers_is_one_line(write, monkeypatch):
    monkeypatch.setattr(vlm.library, "version", lambda name: "4.15.0")
    ended = run_program("captioning.train", "--config", write(vlm="a/b"), "--device", "cpu")
    assert ended.code == 2 and one_error_line(ended.err, "vlm needs transformers 5.0 or later") == (
        "error: model vlm needs transformers 5.0 or later, which needs Python 3.10 or later; this "
        "is transformers 4.15.0"
    )


def json_file(name, edit):
    def change(folder):
        content = json.loads((folder / name).read_text())
        edit(content)
        (folder / name).write_text(json.dumps(content))

    return change


def cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:100])


def chat_template(edit):
    def change(folder):
        path = folder / "chat_template.jinja"
        path.write_text(edit(path.read_text()))

    return change


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
UNLOADED = "vlm is FOLDER, which cannot be loaded: "
BROKEN = [
    *((cut(file), UNLOADED) for file in ("config.json", "tokenizer.json", "model.safetensors")),
    (without_a_weight, f"{UNLOADED}1 weights are missing, such as "),
    (custom_code, f"{UNLOADED}The repository FOLDER contains custom code which must be executed"),
    (
        json_file("config.json", lambda content: content.update(model_type="vit")),
        f"{UNLOADED}type vit does not generate text from images",
    ),
    (
        json_file("config.json", lambda content: content.update(model_type="blip")),
        f"{UNLOADED}it is a BLIP: set model: blip, and pretrained to its name",
    ),
    (
        lambda folder: (folder / "chat_template.jinja").unlink(),
        "the chat template of FOLDER cannot be loaded: Cannot use apply_chat_template because this",
    ),
    (chat_template(lambda _: "{% for %}"), "the chat template of FOLDER cannot be loaded: "),
    (chat_template(lambda _: "{{ 1 }}"), "the chat template of FOLDER leaves out the assistant"),
    (
        chat_template(lambda text: text.replace("<image>", "")),
        "FOLDER cannot process a photo of 64 x 48 pixels with this prompt: ",
    ),
    (
        json_file("tokenizer.json", lambda content: content["model"]["vocab"].update(WORDS)),
        "vlm is FOLDER, but its tokenizer has 150 tokens and its model's head 47: they do not",
    ),
]


class TestFolders:
    @pytest.fixture(autouse=True)
    def library(self):
        reason = "model vlm needs transformers 5.0"
        pytest.importorskip("transformers", minversion="5.0", reason=reason)

    @pytest.fixture
    def broken(self, vlm_folder, tmp_path):
        def copy(name=CHAT):
            folder, prompt = vlm_folder(name)
            target = Path(shutil.copytree(folder, tmp_path / "broken"))
            vlm.library.load_parts.cache_clear()
            vlm.prompt.load_prompt_processor.cache_clear()
            return target, prompt

        return copy

    def test_a_folder_that_is_not_there_is_named(self, error_of):
        for name in ("./nowhere", "nowhere"):
            assert error_of(vlm=name, prompt="x") == f"vlm is {name}: there is no such folder"
        line = error_of(vlm="hf://nobody/nothing", prompt="x")  # without a network
        assert line.startswith("vlm is hf://nobody/nothing, which cannot be loaded: ")

    @pytest.mark.parametrize(("change", "message"), BROKEN)
    def test_what_is_broken_in_a_folder_is_named(self, broken, error_of, change, message):
        folder, prompt = broken()
        change(folder)
        line = error_of(vlm=str(folder), prompt=prompt)
        assert line.replace(str(folder), "FOLDER").startswith(message)

    def test_a_prompt_that_is_missing_or_has_no_place_is_named(self, vlm_folder, error_of):
        folder, _ = vlm_folder(CHAT)
        line = f"prompt is empty, but {folder} is a chat model and needs a prompt"
        assert error_of(vlm=folder, prompt="") == error_of(vlm=folder, prompt=" ") == line
        folder, _ = vlm_folder(PLAIN)
        line = f"prompt is 'what', but {folder} has no text input: set prompt to ''"
        assert error_of(vlm=folder, prompt="what") == line

    def test_guidance_is_refused_before_weights_are_read(self, broken, error_of):
        folder, prompt = broken("Qwen2VLForConditionalGeneration")
        (folder / "model.safetensors").unlink()
        assert error_of(vlm=str(folder), prompt=prompt, guidance_scale=2, num_beams=1) == (
            "guidance_scale is 2.0, which model vlm does not support for qwen2_vl, only for "
            "gemma3, git, idefics3, internvl, llava_onevision, mllama, paligemma, smolvlm: set it "
            "to 1"
        )

    def test_a_photo_that_a_processor_cannot_take_is_named_or_skipped(
        self, vlm_folder, write, tmp_path
    ):
        from PIL import Image

        from captioning.data.annotations import Sample
        from captioning.data.dataset import EvaluationDataset

        folder, prompt = vlm_folder("Qwen2VLForConditionalGeneration")
        made = preprocessing_of(load_config(write(vlm=folder, prompt=prompt)))
        for name, size in {"dot.png": (1, 1), "line.png": (1, 300)}.items():
            Image.new("RGB", size).save(tmp_path / name)
        samples = [Sample(name, (), name) for name in ("dot.png", "line.png")]
        photos = EvaluationDataset(samples, str(tmp_path), made.evaluation)
        assert photos[0]["image"]["pixel_values"].shape == (16, 24)
        line = (
            f"line.png: {folder} cannot process a photo of 1 x 300 pixels with this prompt: "
            "absolute aspect ratio must be smaller than 200, got 300.0"
        )
        with raises_line(UserError, start=line):
            photos[1]
        skipped = EvaluationDataset(samples, str(tmp_path), made.evaluation, True)[1]
        assert skipped["image"] is None and skipped["unreadable"][0].startswith(line)
