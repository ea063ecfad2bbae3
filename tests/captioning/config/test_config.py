"""The configuration: BLIP's file as it is, overrides, and one line for everything wrong."""

from dataclasses import asdict

import pytest

from captioning.config import load_config, write_config
from captioning.runtime.errors import UserError
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


def test_the_objective_is_built_from_its_keys(blips):
    overrides = ["objective={mle: 0.01, smile: 0.99}", "label_smoothing=0", "first_token_mle=false"]
    objective = load_config(blips, overrides).build_objective()
    assert objective.weights == {"mle": 0.01, "smile": 0.99}
    assert (objective.label_smoothing, objective.first_token_mle) == (0, False)


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_every_alternative_with_its_parameters(name, blips, tmp_path):
    parameters = asdict(ALTERNATIVES[name]())
    written = ", ".join(f"{k}: {7 if v is None else v}" for k, v in parameters.items())
    override = f"objective={{mle: 0.5, {name}: {{weight: 0.25, {written}}}}}"
    config = load_config(blips, [override.replace(", }", "}")])
    objective = config.build_objective()
    assert objective.weights == {"mle": 0.5, name: 0.25}
    made = asdict(objective.alternatives[name])
    assert made == {k: 7 if v is None else v for k, v in parameters.items()}
    write_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    assert load_config(blips, [f"objective={name}"]).build_objective().weights == {name: 1}
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
    """A run of before, whose folder says true, goes on where that changes nothing."""
    for given, found in ((), expected), (("first_token_mle=",), expected):
        assert load_config(blips, [f"objective={objective}", *given]).first_token_mle is found
    for value in (True, False):
        given = f"first_token_mle={str(value).lower()}"
        assert load_config(blips, [f"objective={objective}", given]).first_token_mle is value


def test_a_written_configuration_reads_back_the_same(blips, tmp_path):
    config = load_config(blips, ["vit={embed_dim: 64, depth: 2, num_heads: 4}", "objective=smile"])
    write_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num_beam=3", "unknown key 'num_beam'; did you mean 'num_beams'?"),
        ("xyzzy=3", "unknown key 'xyzzy'"),
        ("num_beams=0", "num_beams is 0; it must be 1 or more"),
        ("num_beams=three", "num_beams: found 'three'; input should be a valid integer"),
        ("num_beams=3.5", "num_beams: found 3.5; input should be a valid integer"),
        ("batch_size=0", "batch_size: found 0; input should be greater than 0"),
        ("init_lr=fast", "init_lr: found 'fast'; input should be a valid number"),
        ("min_lr=1", "min_lr is 1.0, above init_lr, 1e-05"),
        ("vit=huge", "vit: found 'huge'; input should be 'base' or 'large'"),
        ("vit={depth: 2}", "vit.embed_dim is missing; vit.num_heads is missing"),
        ("vit={depth: 2, embed_dim: 6, num_heads: 4}", "vit: embed_dim must be a multiple"),
        ("vit={depth: 2, embed_dim: 4, num_heads: 4, deep: 1}", "unknown key 'vit.deep'"),
        ("vit.depth=2", "override vit.depth: vit is 'base', which holds no keys"),
        ("vit_grad_ckpt=1", "vit_grad_ckpt: found 1; input should be a valid boolean"),
        ("image_size=100", "image_size is 100; it must be a multiple of 16"),
        ("image_root=", "image_root: found None; input should be a valid string"),
        (
            "objective=smlie",
            "objective 'smlie' is unknown; choose from mle, smile, random, reverse",
        ),
        ("objective={mle: 0}", "objective 'mle' has weight 0.0; give a number above 0"),
        ("objective={mle: x}", "objective.mle: found 'x'; input should be a valid number"),
        ("label_smoothing=1", "label_smoothing: found 1; input should be less than 1"),
        ("min_length=30", "min_length is 30, above max_length, 20"),
        ("top_p=1.5", "top_p is 1.5; it must be 1 or less"),
        ("precision=int4", "precision: found 'int4'; input should be 'fp32', 'bf16', 'fp16' or"),
        ("clip_grad_norm=-1", "clip_grad_norm: found -1; input should be greater than 0"),
        ("keep_checkpoints=0", "keep_checkpoints: found 0; input should be greater than or equal"),
        ("num_beams", "override 'num_beams' is not of the form key=value"),
        ("vit={depth: [}", "not valid YAML"),
        ("seed=99999999999999999999", "seed: found 99999999999999999999; input should be less"),
        ("init_lr=.inf", "init_lr: found inf; input should be a finite number"),
        ("length_penalty=.nan", "length_penalty: found nan; input should be a finite number"),
        ("prompt=a photo of", "prompt: found 'a photo of'; end it with a space"),
    ],
)
def test_everything_wrong_is_one_line(blips, override, message):
    with pytest.raises(UserError) as error:
        load_config(blips, [override])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected lines of 'key: value', found None"),
        ("- 1", "expected lines of 'key: value', found [1]"),
        ("a: b: c", "not valid YAML"),
        ("a: 1\na: 2", "not valid YAML"),
        ("ann_root: x", "image_root is missing"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        load_config(path)
    assert message in str(error.value) and str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the configuration .*absent.yaml"):
        load_config(tmp_path / "absent.yaml")


def test_every_shipped_configuration_is_valid(repository):
    paths = sorted((repository / "configs").glob("*.yaml"))
    assert len(paths) >= 4
    for path in paths:
        load_config(path)
