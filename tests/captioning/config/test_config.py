"""The configuration: BLIP's file as it is, overrides, and one line for everything wrong."""

import pickle
import subprocess
import sys
from dataclasses import asdict

import pytest

from captioning.config import config_class, every_key, load_config, parse_config, write_config
from captioning.config.objectives import objective_title, training_name
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load
from smile import OBJECTIVES
from smile.alternatives import ALTERNATIVES

# The keys and values of BLIP's own configs/caption_coco.yaml.
BLIPS = """
image_root: '/export/share/datasets/vision/coco/images/'
ann_root: 'annotation'
coco_gt_root: 'annotation/coco_gt'
pretrained: 'https://storage.googleapis.com/sfr-vision-language-research/BLIP/models/model.pth'
vit: 'base'
vit_grad_ckpt: False
vit_ckpt_layer: 0
batch_size: 32
init_lr: 1e-5
image_size: 384
max_length: 20
min_length: 5
num_beams: 3
prompt: 'a picture of '
weight_decay: 0.05
min_lr: 0
max_epoch: 5
"""


@pytest.fixture
def blips(tmp_path):
    path = tmp_path / "caption_coco.yaml"
    path.write_text(BLIPS)
    return path


def test_blips_own_file_runs_unchanged_as_blip_does(blips):
    config = load_config(blips)
    assert (config.init_lr, config.min_lr, config.vit) == (1e-5, 0.0, "base")
    assert (config.objective, config.label_smoothing) == ("mle", 0.1)
    assert config.build_objective().label_smoothing == 0.1
    assert (config.dataset, config.tokenizer) == ("coco", "bert-base-uncased")
    settings = config.decoding_settings()
    assert (settings.num_beams, settings.max_length, settings.min_length) == (3, 20, 5)
    assert not settings.sample
    assert config.output_dir == "output/caption_coco"


def test_overrides_are_yaml_and_reach_into_mappings(blips):
    config = load_config(
        blips,
        [
            "objective={mle: 0.3, smile: 0.7}",
            "objective.mle=1",
            "init_lr=2e-3",
            "pretrained=",
            "vit={embed_dim: 64, depth: 2, num_heads: 4}",
            "vit.depth=3",
            "prompt=",
            "prompt='the '",
        ],
        {"seed": 7, "output_dir": "1"},
    )
    assert config.objective == {"mle": 1.0, "smile": 0.7}
    assert (config.init_lr, config.pretrained, config.vit.depth) == (2e-3, None, 3)
    assert (config.prompt, config.seed, config.output_dir) == ("the ", 7, "1")


def test_an_image_of_any_size_suits_a_classic_captioner(blips):
    assert load_config(blips, ["model=rnn", "image_size=100"]).image_size == 100
    with pytest.raises(UserError, match="must be a multiple of 16"):
        load_config(blips, ["image_size=100"])


def test_the_objective_is_built_from_its_keys(blips):
    overrides = ["objective={mle: 0.01, smile: 0.99}", "label_smoothing=0", "first_token_mle=false"]
    objective = load_config(blips, overrides).build_objective()
    assert objective.weights == {"mle": 0.01, "smile": 0.99}
    assert (objective.label_smoothing, objective.first_token_mle) == (0, False)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_alone_and_in_a_mixture_with_its_parameters(name, blips, tmp_path):
    parameters = asdict(load(ALTERNATIVES[name])()) if name in ALTERNATIVES else {}
    parameters = {k: 7 if v is None else v for k, v in parameters.items()}
    written = ", ".join(["weight: 0.25", *(f"{k}: {v}" for k, v in parameters.items())])
    other = "smile" if name == "mle" else "mle"
    for spec, weights in {
        name: {name: 1},
        f"{{{other}: 0.5, {name}: {{{written}}}}}": {other: 0.5, name: 0.25},
    }.items():
        config = load_config(blips, [f"objective={spec}"])
        objective = config.build_objective()
        assert objective.weights == weights
        assert all(objective_title(part) in training_name(config) for part in weights)
        write_config(config, tmp_path / "config.yaml")
        assert load_config(tmp_path / "config.yaml") == config
    if name in ALTERNATIVES:
        assert asdict(objective.alternatives[name]) == parameters
        with pytest.raises(UserError, match=f"objective.* '{name}' has no parameter 'warmth'"):
            load_config(blips, [f"objective={{{name}: {{warmth: 1}}}}"])


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        *(("mle", True), ("smile", True), ("reverse", True), ("random", False)),
        *(("{mle: 1, random: 1}", False), ("{smile: 1, reverse: 1}", True)),
        ("{smile: 1, random: 1}", None),  # each as it has it alone
    ],
)
def test_first_tokens_without_a_setting_are_as_in_the_original(blips, objective, expected):
    for given, found in ((), expected), (("first_token_mle=",), expected):
        assert load_config(blips, [f"objective={objective}", *given]).first_token_mle is found
    for value in (True, False):
        given = f"first_token_mle={str(value).lower()}"
        assert load_config(blips, [f"objective={objective}", given]).first_token_mle is value


def test_keys_of_other_captioners_are_left_out(blips, tmp_path):
    """Also those of a folder that an earlier version wrote, with the keys of all captioners."""
    config = load_config(blips, ["hidden_dim=64"])
    assert "hidden_dim" not in config.model_dump()
    everything = config_class()(**config.model_dump()).model_dump()
    assert {"hidden_dim", "vlm", "encoder"} <= everything.keys()
    assert everything.items() >= parse_config(everything).model_dump().items()
    assert "hidden_dim" not in parse_config(everything).model_dump()
    assert every_key(parse_config(everything)) == everything == every_key(config)
    assert pickle.loads(pickle.dumps(config)) == config


def test_options_of_metrics_that_are_not_named_are_kept_where_they_are_set(blips, tmp_path):
    assert not hasattr(load_config(blips), "facts_file")
    config = load_config(blips, ["facts_file=scenes.json", "metrics=[length]"])
    assert (config.facts_file, config.metrics) == ("scenes.json", ["length"])
    write_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config == pickle.loads(pickle.dumps(config))
    named = load_config(blips, ["facts_file=scenes.json", "metrics=[facts]"])
    rewarded = load_config(blips, ["facts_file=scenes.json", "reward={facts: 1}"])
    assert named.facts_file == rewarded.facts_file == "scenes.json"
    assert not hasattr(named, "clip_model") and hasattr(rewarded, "train_captions")


def test_a_run_imports_what_its_configuration_names_alone(blips):
    """In a process of its own, in which nothing else has imported others."""
    overrides = ["metrics=[length]", "monitor=PPL", "reward={cider: 1}", "objective={focal: 1}"]
    code = f"""
import sys
import captioning.train
from captioning.captioners.registry import CAPTIONERS
from captioning.metrics.registry import EVALUATORS
from captioning.models.precision import check_precision
from captioning.rewards.registry import REWARDS
from smile.alternatives import ALTERNATIVES
config = captioning.train.load_config({str(blips)!r}, {overrides})
check_precision(config, None)
registries = (CAPTIONERS, EVALUATORS, REWARDS, ALTERNATIVES)
entries = {{entry.partition(":")[0] for names in registries for entry in names.values()}}
print(*sorted((entries | {{"vlm", "baselines", "gradio", "ray"}}) & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        *("BLIP.configured", "captioning.metrics.diversity", "captioning.rewards.cider"),
        "smile.alternatives.focal",
    ]


def test_every_shipped_configuration_is_valid(repository):
    paths = sorted((repository / "configs").glob("*.yaml"))
    assert len(paths) >= 4
    for path in paths:
        load_config(path)
