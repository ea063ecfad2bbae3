"""Every key of a configuration, wrong in type and out of range: the exact line for each."""

from dataclasses import fields
from pathlib import Path

import pytest

from BLIP.med import MedConfig, read_med_config
from captioning.config import Config, VitSizes, load_config
from captioning.runtime.errors import UserError

HERE = Path(__file__).parent
MINIMAL = "image_root: a\nann_root: b\n"


def table(name):
    """Return the rows of a table beside this file: (setting, message)."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ", 1) for line in lines if not line.startswith("#")]
    return [(setting.strip(), message) for setting, message in rows]


TYPES, RANGES = table("config_types.txt"), table("config_ranges.txt")

SIZES = "{embed_dim: 8, depth: 1, num_heads: 2}"
VIT = [  # vit.KEY=VALUE, beside the sizes above
    ("embed_dim=wide", "vit.embed_dim: found 'wide'; input should be a valid integer"),
    ("embed_dim=0", "vit.embed_dim: found 0; input should be greater than 0"),
    ("embed_dim=65537", "vit.embed_dim: found 65537; input should be less than or equal to 65536"),
    ("embed_dim=9", "vit: embed_dim must be a multiple of num_heads"),
    ("depth=1.5", "vit.depth: found 1.5; input should be a valid integer"),
    ("depth=0", "vit.depth: found 0; input should be greater than 0"),
    ("depth=1001", "vit.depth: found 1001; input should be less than or equal to 1000"),
    ("num_heads=true", "vit.num_heads: found True; input should be a valid integer"),
    ("num_heads=0", "vit.num_heads: found 0; input should be greater than 0"),
    ("patch_size=[16]", "vit.patch_size: found [16]; input should be a valid integer"),
    ("patch_size=0", "vit.patch_size: found 0; input should be greater than 0"),
    ("patch_size=7", "image_size is 384; it must be a multiple of 7"),
    ("mlp_ratio=four", "vit.mlp_ratio: found 'four'; input should be a valid number"),
    ("mlp_ratio=0", "vit.mlp_ratio: found 0; input should be greater than 0"),
    ("mlp_ratio=1001", "vit.mlp_ratio: found 1001; input should be less than or equal to 1000"),
    ("drop_path_rate=no", "vit.drop_path_rate: found 'no'; input should be a valid number"),
    ("drop_path_rate=1", "vit.drop_path_rate: found 1; input should be less than 1"),
    (
        "drop_path_rate=-1",
        "vit.drop_path_rate: found -1; input should be greater than or equal to 0",
    ),
    ("layer_norm_eps=tiny", "vit.layer_norm_eps: found 'tiny'; input should be a valid number"),
    ("layer_norm_eps=0", "vit.layer_norm_eps: found 0; input should be greater than 0"),
    ("initializer_range=x", "vit.initializer_range: found 'x'; input should be a valid number"),
    ("initializer_range=0", "vit.initializer_range: found 0; input should be greater than 0"),
]

WHOLE, NUMBER = "a whole number above 0", "a number, 0 or above"
MED = [  # med_config: key, wrong in type, out of range, what it must be
    ("hidden_size", "768", 0, WHOLE),
    ("num_hidden_layers", 1.5, -1, WHOLE),
    ("num_attention_heads", True, 0, WHOLE),
    ("intermediate_size", None, 0, WHOLE),
    ("max_position_embeddings", [512], 0, WHOLE),
    ("layer_norm_eps", "tiny", -1.0, NUMBER),
    ("hidden_dropout_prob", "0.1", -0.5, NUMBER),
    ("attention_probs_dropout_prob", {}, -0.5, NUMBER),
    ("initializer_range", False, float("nan"), NUMBER),
]

TOGETHER = [
    (["min_length=30"], "min_length is 30, above max_length, 20"),
    (["min_lr=1"], "min_lr is 1.0, above init_lr, 1e-05"),
    (["image_size=100"], "image_size is 100; it must be a multiple of 16"),
    (
        ["model=lstm", "attention_penalty=1"],
        "attention_penalty is 1.0, but model lstm has no attention to weigh; it is for attn and "
        "sat",
    ),
    (["model=lstm", "num_layers=2"], "num_layers is 2; lstm has one layer"),
    (
        ["model=sat", "teacher_forcing=exponential"],
        "teacher_forcing_k is 10.0; with exponential it must be below 1",
    ),
    (
        ["model=sat", "teacher_forcing=inverse_sigmoid", "teacher_forcing_k=0.5"],
        "teacher_forcing_k is 0.5; with inverse_sigmoid it must be 1 or more",
    ),
    (
        ["reward={facts: 1}"],
        "reward: facts needs facts_file, the file that says what is in each image",
    ),
    (
        ["reward={cider: 1}", "reward_samples=1"],
        "reward_samples is 1, but reward_baseline is others, the mean of an image's other samples; "
        "raise it, or set reward_baseline=greedy",
    ),
    (
        ["reward={cider: 1}", "objective=smile", "vit_grad_ckpt=true"],
        "vit_grad_ckpt is true, which cannot stand beside a reward and an objective, since an "
        "image is then encoded twice; set it to false",
    ),
    (
        ["reward={cider: 1}", "sharding=fsdp"],
        "sharding is fsdp, which reward has not; set it to none",
    ),
    (
        ["reward={cider: 1}", "objective={smlie: 1}"],
        "objective: found {'smlie': 1}; objective 'smlie' is unknown; choose from mle, smile, "
        "random, reverse, selective_eos, unlikelihood, focal, dft, tailr, mixce, gem, scalegrad, "
        "truncation",
    ),
    (["select=cider"], "select: found 'cider'; 'cider' is no metric; did you mean CIDEr?"),
    (["select=first"], "select: found 'first'; 'first' is no metric"),
    (
        ["select=CIDEr Bleu_4"],
        "select: found 'CIDEr Bleu_4'; write it as METRIC, -METRIC or METRIC + METRIC",
    ),
    (["monitor=last"], "monitor: found 'last'; 'last' is no metric"),
    (["monitor=''"], "monitor: found ''; write it as METRIC, -METRIC or METRIC + METRIC"),
    (
        ["prompt=a photo of"],
        "prompt: found 'a photo of'; end it with a space, or a caption's first word runs into it",
    ),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "least.yaml"
    path.write_text(MINIMAL)
    return path


def said(path, overrides):
    with pytest.raises(UserError) as error:
        load_config(path, overrides)
    where, _, message = str(error.value).partition(": ")
    assert where == str(path) and "\n" not in message
    return message


@pytest.mark.parametrize(("setting", "message"), TYPES)
def test_a_wrong_type(path, setting, message):
    assert said(path, [setting]) == message


@pytest.mark.parametrize(("setting", "message"), RANGES)
def test_a_value_out_of_range(path, setting, message):
    assert said(path, [setting]) == message


@pytest.mark.parametrize(("setting", "message"), VIT)
def test_a_size_of_the_image_encoder(path, setting, message):
    assert said(path, [f"vit={SIZES}", f"vit.{setting}"]) == message


@pytest.mark.parametrize(("key", "of_type", "of_range", "must"), MED)
def test_a_size_of_the_text_decoder(key, of_type, of_range, must):
    for value in (of_type, of_range):
        with pytest.raises(ValueError) as error:
            read_med_config({key: value})
        assert str(error.value) == f"med_config: {key} is {value!r}; it must be {must}"


@pytest.mark.parametrize(("settings", "message"), TOGETHER)
def test_what_does_not_go_together(path, settings, message):
    assert said(path, settings).partition("; there are cap_len")[0] == message


def keys(rows):
    return {setting.partition("=")[0] for setting, _ in rows}


def limited(schema):
    """Whether pydantic's schema of a key says more than what type it is, booleans apart."""
    if isinstance(schema, list):
        return any(map(limited, schema))
    if not isinstance(schema, dict):
        return False
    limits = {"enum", "const", "minLength", "minItems", "pattern", "$ref"} & schema.keys()
    numeric = schema.get("type") in ("integer", "number")
    return bool(limits) or numeric or any(map(limited, schema.values()))


def test_every_key_has_its_rows():
    """A key that is added to the configuration needs a row in the tables."""
    properties = Config.model_json_schema()["properties"]
    assert keys(TYPES) == set(Config.model_fields)
    assert keys(RANGES) == {name for name, schema in properties.items() if limited(schema)}
    assert keys(VIT) == set(VitSizes.model_fields)
    assert {row[0] for row in MED} == {field.name for field in fields(MedConfig)}


def test_an_empty_name_of_an_optional_file_is_none(path):
    names = [name for name in Config.model_fields if name.endswith(("_file", "_root"))]
    optional = [name for name in names if not Config.model_fields[name].is_required()]
    config = load_config(path, [f"{name}=''" for name in optional])
    assert len(optional) >= 7 and not any(getattr(config, name) for name in optional)
