"""The configuration: BLIP's own file, overrides, keys of packages, and names of objectives."""

from inspect import signature

import pytest
from ruamel.yaml import YAML

from captioning.config import load_config, objectives
from captioning.runtime.errors import UserError
from smile import OBJECTIVES
from smile.alternatives import ALTERNATIVES


@pytest.fixture
def blips(tmp_path):
    """Return the path of BLIP's own configs/caption_coco.yaml."""
    path = tmp_path / "caption_coco.yaml"
    YAML().dump({**SMILES, "max_length": 20, "min_length": 5}, path)
    return path


def test_overrides_are_yaml_and_reach_into_mappings(blips):
    given = ["objective={mle: 0.3, smile: 0.7}", "objective.mle=1", "init_lr=2e-3", "pretrained="]
    given += ["vit={embed_dim: 64, depth: 2, num_heads: 4}", "vit.depth=3", "prompt="]
    given += ["input=fast", "null_image=zeros"]  # of an earlier version, and still true
    config = load_config(blips, [*given, "prompt='the '"], {"seed": 7, "output_dir": "1"})
    assert config.objective == {"mle": 1.0, "smile": 0.7}
    assert (config.init_lr, config.pretrained, config.vit.depth) == (2e-3, None, 3)
    assert (config.prompt, config.seed, config.output_dir) == ("the ", 7, "1")


TEXTS = {  # key=value: the value, if it is not the text
    "output_dir=/tmp/holiday #2": None,
    "image_root=/data/a #1/im": None,
    "val_file=- a": None,
    "val_file=[a, 'b #1']": ["a", "b #1"],
    "train_file=s3://bucket/{00..10}.tar": None,
    "prompt=a photo of ": None,
    "prompt=it's a: [x] # ": None,
    "val_file=[a ": None,
    "pretrained=null": "",
    "pretrained=# none": None,
    "encoder=12": None,
    "facts_file=[a]": None,
}


@pytest.mark.parametrize("given", TEXTS)
def test_text_on_the_command_line_is_taken_as_it_is(blips, given):
    key, _, text = given.partition("=")
    expected = text if TEXTS[given] is None else TEXTS[given] or None
    model = "lstm" if key == "encoder" else "blip"
    assert getattr(load_config(blips, [f"model={model}", given]), key) == expected


def test_a_tilde_is_the_home_folder_in_every_path(blips, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    keys = ["ann_root", "output_dir", "coco_gt_root", "pretrained", "tokenizer", "val_gt_file"]
    keys += ["facts_file", "itm_model", "med_config"]
    config = load_config(blips, [*(f"{key}=~/a b" for key in keys), "train_file=[a, ~/b]"])
    assert {getattr(config, key) for key in keys} == {"/home/someone/a b"}
    assert config.train_file == ["a", "/home/someone/b"]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_read_alone_and_in_a_mixture_with_its_parameters(name, blips):
    parameters = signature(ALTERNATIVES[name]).parameters if name in ALTERNATIVES else {}
    parameters = {k: v.default for k, v in parameters.items() if v.default is not v.empty}
    parameters = {k: 7 if v is None else v for k, v in parameters.items()}
    assert load_config(blips, [f"objective={name}"]).build_objective().weights == {name: 1}
    other = "smile" if name == "mle" else "mle"
    written = ", ".join(["weight: 0.25", *(f"{k}: {v}" for k, v in parameters.items())])
    config = load_config(blips, [f"objective={{{other}: 0.5, {name}: {{{written}}}}}"])
    objective = config.build_objective()
    assert objective.weights == {other: 0.5, name: 0.25}
    titles = map(objectives.objective_title, (name, other))
    assert all(title in objectives.training_name(config) for title in titles)
    if name in ALTERNATIVES:
        assert objective.options[name] == parameters
        with pytest.raises(UserError, match=f"objective.* '{name}' has no parameter 'warmth'"):
            load_config(blips, [f"objective={{{name}: {{warmth: 1}}}}"])


def test_first_tokens_without_a_setting_are_as_in_the_original(blips):
    for objective, value in {
        **{"mle": True, "smile": True, "reverse": True, "random": False},
        **{"{mle: 1, random: 1}": False, "{smile: 1, reverse: 1}": True},
        "{smile: 1, random: 1}": None,  # each objective has its own default
    }.items():
        given = [f"objective={objective}", "first_token_mle="]
        assert load_config(blips, given).first_token_mle is value


MODELS = "https://storage.googleapis.com/sfr-vision-language-research/BLIP/models/"

# github.com/yuezih/SMILE, BLIP/configs/caption_coco.yaml at 7bab3e8. BLIP's own file of that name
# has max_length 20 and min_length 5, and is otherwise the same.
SMILES = {
    "image_root": "/export/share/datasets/vision/coco/images/",
    "ann_root": "annotation",
    "coco_gt_root": "annotation/coco_gt",
    "pretrained": f"{MODELS}model_base_caption_capfilt_large.pth",
    "vit": "base",
    "vit_grad_ckpt": False,
    "vit_ckpt_layer": 0,
    "batch_size": 32,
    "init_lr": 1e-5,
    "image_size": 384,
    "max_length": 75,
    "min_length": 1,
    "num_beams": 3,
    "prompt": "a picture of ",
    "weight_decay": 0.05,
    "min_lr": 0,
    "max_epoch": 5,
}

# The same file's values for ViT-L, which are comments there.
LARGE = {"vit": "large", "vit_grad_ckpt": True, "vit_ckpt_layer": 5}
LARGE |= {"batch_size": 16, "init_lr": 2e-6}

OURS = {"objective", "precision", "keep_checkpoints", "dataset"}  # keys that the original lacks
OTHERWISE = {  # keys that differ from the original, with the words of a comment that says so
    "caption_coco": {},
    "caption_coco_large": {"pretrained": "names no weights for it"},
    "caption_flickr30k": {"pretrained": "BLIP as it was pre-trained"},
}


def different(config, **original):
    paths = {"image_root": config.image_root, "ann_root": config.ann_root}
    original = {**SMILES, **original, **paths, "coco_gt_root": config.coco_gt_root}
    return {key for key, value in original.items() if getattr(config, key) != value}


def test_blips_own_file_runs_unchanged_as_blip_does(blips):
    config = load_config(blips)
    assert different(config, max_length=20, min_length=5) == set()
    assert config.build_objective().label_smoothing == 0.1
    assert (config.objective, config.output_dir) == ("mle", "output/caption_coco")


def test_shipped_configurations_are_valid_and_the_originals(repository):
    paths = {path.stem: path for path in (repository / "configs").glob("*.yaml")}
    configs = {name: load_config(path) for name, path in paths.items()}
    for name, keys in OTHERWISE.items():
        large = LARGE if name.endswith("large") else {}
        assert different(configs[name], **large) == keys.keys(), name
        text = paths[name].read_text(encoding="utf-8")
        assert all(comment in text for comment in keys.values())
        assert set(YAML(typ="safe").load(text)) - OURS <= set(SMILES)
