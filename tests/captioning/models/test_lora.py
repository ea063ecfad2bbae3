"""LoRA of BLIP and of vision-language models: what learns, is saved, resumed, read and exported."""

from functools import partial

import pytest
import torch
from PIL import Image

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")
pytest.importorskip("peft", reason="peft is in the tests from Python 3.10")

from peft import LoraConfig, PeftModel, get_peft_model
from transformers import BlipForConditionalGeneration

from BLIP.adapter import adapter_config, trained_state
from BLIP.convert import save_hf
from BLIP.from_checkpoint import captioner_of
from captioning.config import load_config
from captioning.models.build import captioner_from, load_trained, preprocessing_of, trained_config
from captioning.runtime.errors import UserError
from tests.programs import raises_line, refused, run_program
from tests.tiny import TINY_RUN
from tests.vlm import folders
from vlm.library import load_model, load_parts

LORA = "lora={r: 2, alpha: 8, dropout: 0.0}"
MODULE = {"blip": "", "vlm": "model"}  # the submodule of the captioner that has the adapter
CAPTIONS = [["a red disc", "a ring"]]
CPU = torch.device("cpu")
about_equal = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def paths(scenes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    keys = "device: cpu\nlr_schedule: exponential\neval_every: 9\nmetrics: [length]\n"
    (folder / "blip.yaml").write_text(TINY_RUN.format(data=scenes) + keys)
    prompt = folders.write("Idefics3ForConditionalGeneration", str(folder / "model"))
    keys = f"model: vlm\nvlm: {folder}/model\nprompt: {prompt}\naugmentation: none\n"
    (folder / "vlm.yaml").write_text(f"image_root: .\nann_root: .\n{keys}")
    config = load_config(folder / "blip.yaml")
    weights = captioner_from(config, None)[0].state_dict()
    torch.save({"model": weights, "config": config.model_dump()}, folder / "base.pth")
    return folder


def base_of(paths, kind):
    return str(paths / "base.pth") if kind == "blip" else None


def whole(paths, kind):
    return captioner_from(load_config(paths / f"{kind}.yaml"), base_of(paths, kind))[0].eval()


def photos(config):
    return preprocessing_of(config).one(Image.radial_gradient("L").convert("RGB"))


@torch.no_grad()
def logits(captioner, config):
    return captioner.eval().predictions(photos(config), CAPTIONS)[0]


def save(captioner, config, path):
    content = {"model": trained_state(captioner), "config": config.model_dump()}
    torch.save({**content, **adapter_config(captioner)}, path)
    return str(path)


def read(path):
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module", params=MODULE)
def adapted(paths, request):
    """Return the kind, the configuration, the captioner after two steps, and its checkpoint."""
    kind, base = request.param, base_of(paths, request.param)
    config = load_config(paths / f"{kind}.yaml", [LORA, f"pretrained={base or ''}"])
    captioner, _ = captioner_from(config, base)
    ((parameters, _),) = captioner.parameter_groups()
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    for _ in range(2):  # the first one moves half of the layers
        captioner.train()(photos(config), CAPTIONS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return kind, config, captioner.eval(), save(captioner, config, paths / f"{kind}.pth")


def test_the_adapter_alone_learns_and_is_saved_and_inference_merges_a_copy(paths, adapted):
    kind, config, captioner, path = adapted
    copy, before = captioner.for_inference(torch.float32, False), whole(paths, kind).state_dict()
    about_equal(logits(copy, config), logits(captioner, config))
    for name, value in captioner.named_parameters():
        plain = name.replace(".base_layer", "")
        assert value.requires_grad == ("lora_" in name)
        assert plain not in before or value.equal(before[plain])
    content = read(path)
    torch.testing.assert_close(trained_state(captioner), content["model"], rtol=0, atol=0)
    assert all(key.endswith((".lora_A.weight", ".lora_B.weight")) for key in content["model"])
    assert all(value.abs().max() > 0 for value in content["model"].values())
    base = base_of(paths, kind) or str(paths / "model")
    assert content["adapter_config"]["base_model_name_or_path"] == base


def test_peft_and_every_program_read_what_was_saved(paths, adapted, tmp_path):
    kind, config, captioner, path = adapted
    expected = logits(captioner, config)
    assert not expected.allclose(logits(whole(paths, kind), config), atol=1e-3)
    again, line = captioner_from(config, path)
    assert line.endswith("every key matched") and logits(again, config).equal(expected)
    folder = tmp_path / "adapter"
    assert run_program("captioning.export", path, folder, "--adapter").code == 0
    run, captioner = load_trained(str(folder), None, CPU)
    assert run == config and logits(captioner, config).equal(expected)
    plain = whole(paths, kind)
    plain_names = plain.state_dict().keys()
    PeftModel.from_pretrained(plain.get_submodule(MODULE[kind]), folder)
    about_equal(logits(plain, config), expected)
    # Without `lora`, the adapter is merged, and all weights are trained further.
    merged, line = captioner_from(load_config(paths / f"{kind}.yaml"), str(folder))
    assert line.startswith(f"loaded {folder}: its adapter is merged into ")
    about_equal(logits(merged, config), expected)
    assert all(parameter.requires_grad for parameter in merged.parameters())
    assert trained_state(merged).keys() == plain_names


def test_models_that_a_checkpoint_names_are_found_from_another_folder(
    paths, adapted, tmp_path, monkeypatch
):
    """Their paths are relative to the folder that the run was started in."""
    kind, config, captioner, path = adapted
    content, name = read(path), "base.pth" if kind == "blip" else "model"
    content["adapter_config"]["base_model_name_or_path"] = name
    content["config"].update(clip_model="base.pth", **({"vlm": name} if kind == "vlm" else {}))
    (paths / "output").mkdir(exist_ok=True)
    torch.save(content, paths / "output" / f"{kind}.pth")
    monkeypatch.chdir(tmp_path)
    found, again = load_trained(str(paths / "output" / f"{kind}.pth"), None, CPU)
    assert logits(again, found).equal(logits(captioner, config))
    assert found.clip_model == str(paths / "base.pth") and found.itm_model is None


@pytest.mark.parametrize("kind", MODULE)
def test_an_adapter_that_peft_trained_is_read(paths, kind, tmp_path):
    config, plain = load_config(paths / f"{kind}.yaml"), whole(paths, kind)
    lora = LoraConfig(r=2, target_modules=".*(qkv|query|q_proj)", init_lora_weights=False)
    peft_model = get_peft_model(plain.get_submodule(MODULE[kind]), lora)
    lora.base_model_name_or_path = base_of(paths, kind) or str(paths / "model")
    peft_model.save_pretrained(tmp_path)
    found = trained_config(str(tmp_path), None, {"prompt": config.prompt})
    merged, _ = captioner_from(found, str(tmp_path))
    about_equal(logits(merged, found), logits(plain, config))


def test_an_adapter_of_transformers_blip_is_read(paths, tmp_path):
    """Such an adapter has transformers' names, as its base has, and perhaps whole modules."""
    save_hf(whole(paths, "blip"), tmp_path / "base")
    lora = {"r": 2, "target_modules": ["qkv", "projection", "fc1", "value"]}
    lora["modules_to_save"] = ["post_layernorm"]
    model = BlipForConditionalGeneration.from_pretrained(tmp_path / "base")
    peft_model = get_peft_model(model, LoraConfig(**lora, init_lora_weights=False))
    model.vision_model.post_layernorm.modules_to_save.default.weight.data.fill_(0.5)
    peft_model.save_pretrained(tmp_path / "adapter")
    peft_model.merge_and_unload().save_pretrained(tmp_path / "base")
    config, expected = load_trained(str(tmp_path / "base"), None, CPU)
    save_hf(whole(paths, "blip"), tmp_path / "base")
    found = load_trained(str(tmp_path / "adapter"), None, CPU)[1]
    about_equal(logits(found, config), logits(expected, config))
    again = captioner_of(str(tmp_path / "adapter"))
    torch.testing.assert_close(again.state_dict(), found.state_dict())


def test_the_merged_export_is_a_model_without_an_adapter(paths, adapted, tmp_path):
    kind, config, captioner, path = adapted
    target = tmp_path / "new" / ("merged.pth" if kind == "blip" else "merged")
    assert run_program("captioning.export", path, target).code == 0
    if kind == "blip":
        merged, before = (read(name)["model"] for name in (target, paths / "base.pth"))
        again = captioner_from(load_config(paths / "blip.yaml"), str(target))[0]
        about_equal(logits(captioner_of(path), config), logits(again, config))
    else:
        load_parts(str(target))  # the processor is there, too
        models = (load_model(str(name), pretrained=True) for name in (target, paths / "model"))
        merged, before = (model.state_dict() for model in models)
        again = captioner_from(load_config(paths / "vlm.yaml", [f"vlm={target}"]), None)[0]
    about_equal(logits(again, config), logits(captioner, config))
    assert merged.keys() == before.keys()
    refused("captioning.export", path, target, part=f"error: {target} exists already: choose")


def test_a_resumed_run_is_bit_identical(paths, tmp_path):
    for name, epochs in (("stopped", 1), ("stopped", 2), ("whole", 2)):
        arguments = ["--config", paths / "blip.yaml", "--output_dir", tmp_path / name]
        arguments += ["lora={r: 2, dropout: 0.1}", f"pretrained={paths / 'base.pth'}"]
        arguments += [f"max_epoch={epochs}", "init_lr=1e-2"]
        assert run_program("captioning.train", *arguments).code == 0
    stopped, finished = (read(tmp_path / n / "checkpoint_01.pth") for n in ("stopped", "whole"))
    assert stopped["model"].keys() == finished["model"].keys()
    assert all(stopped["model"][key].equal(value) for key, value in finished["model"].items())
    assert all("lora_" in key for key in finished["model"])


def test_an_adapter_of_four_bits_is_merged_into_whole_weights(paths, tmp_path):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is an option")
    config = load_config(paths / "vlm.yaml", [LORA, "lora.load_in_4bit=true"])
    captioner, _ = captioner_from(config, None)
    captioner.train()(photos(config), CAPTIONS).loss.backward()
    learns = {name for name, p in captioner.named_parameters() if p.grad is not None}
    assert learns and all("lora_" in name for name in learns)
    path = save(captioner, config, tmp_path / "run.pth")
    assert captioner_from(config, path)[1].endswith("every key matched")
    assert run_program("captioning.export", path, tmp_path / "merged").code == 0
    merged, base = (load_model(str(name), True) for name in (tmp_path / "merged", paths / "model"))
    torch.testing.assert_close(merged.state_dict(), base.state_dict())  # it has learned nothing


BASE = [LORA, "pretrained=base.pth"]
MISTAKES = [  # a kind, a checkpoint, overrides, the line; the last two checkpoints are changed ones
    ("blip", None, [LORA], "lora is set, but pretrained is not: "),
    ("vlm", "base.pth", [LORA], "base.pth holds a whole model, but lora adapts the model given by"),
    ("blip", "base.pth", [*BASE, "lora.target_modules=[wq]"], "['wq'] does not fit this model: "),
    ("vlm", None, [LORA, "lora.load_in_4bit=true"], "lora.load_in_4bit needs bitsandbytes: pip in"),
    ("blip", "blip.pth", [*BASE, "lora.r=3"], "blip.pth has an adapter of another model: Error"),
    ("vlm", "blip.pth", [], "blip.pth does not fit this model: Target modules"),
    ("blip", "gone.pth", [], "gone.pth has an adapter of nowhere.pth, but "),
    ("blip", "cut.pth", [], "cut.pth has an adapter of another model: 1 keys differ, such as "),
]


@pytest.mark.parametrize("adapted", ["blip"], indirect=True)
@pytest.mark.parametrize(("kind", "weights", "overrides", "line"), MISTAKES)
def test_mistakes_are_one_line(paths, adapted, kind, weights, overrides, line, monkeypatch):
    monkeypatch.chdir(paths)
    monkeypatch.setattr("vlm.library.find_spec", lambda name: None)
    content = read(adapted[3])
    content["adapter_config"]["base_model_name_or_path"] = "nowhere.pth"
    torch.save(content, "gone.pth")
    content["model"].popitem()
    torch.save({**content, "adapter_config": read(adapted[3])["adapter_config"]}, "cut.pth")
    with raises_line(UserError, line):
        captioner_from(load_config(f"{kind}.yaml", overrides), weights)
    refused("captioning.export", "base.pth", "x", "--adapter", part="error: base.pth has whole")
