"""Impossible configurations: every key refuses other types and limits; files that are not one."""

import re

import pytest
from ruamel.yaml import YAML

from BLIP.sizes import MedConfig, read_med_config
from captioning.config import Config, load_config
from captioning.metrics import EVALUATORS
from captioning.runtime.errors import UserError
from tests.programs import raises_line, unchanged

START = b"image_root: a\nann_root: b\n"
SIZES = "vit={embed_dim: 8, depth: 1, num_heads: 2}"
# A value in YAML, and the JSON types of keys that may take it.
VALUES = {
    "some": {"string"},
    "true": {"boolean"},
    "1": {"integer", "number"},
    "1.5": {"number"},
    ".nan": set(),
    ".inf": set(),
    "[[1]]": set(),
}
# One of each kind of limit.
OUT_OF_RANGE = """
batch_size=0 init_lr=0 early_stopping=0 keep_checkpoints=0 keep_checkpoints=some image_size=4097
max_tokens=2 label_smoothing=1 lr_cycle_growth=11 seed=9223372036854775808 rerank_weight=2
num_candidates=1001 encoder_dim=65537 metrics=[] tokenizer='' med_config='' vlm='' spice_heap=8T
"""

VLM = "model=vlm augmentation=none"
LINES = [
    ("num_beam=3", "unknown key 'num_beam'; did you mean 'num_beams'?"),
    ("num_beams", "override 'num_beams' is not of the form key=value"),
    ("model=gru", "model: found 'gru'; input should be 'blip', 'rnn', 'lstm', 'attn', 'sat' or"),
    ("train_file=[3]", "train_file: found [3]; input should be a valid string; train_file: fo"),
    ("vit=3", "vit: found 3; input should be 'base' or 'large' or a mapping"),
    ("vit=base vit.depth=2", "override vit.depth: vit is 'base', which holds no keys"),
    ("vit={depth: 2}", "vit.embed_dim is missing; vit.num_heads is missing"),
    ("vit={depth: 2, embed_dim: 4, num_heads: 4, deep: 1}", "unknown key 'vit.deep'"),
    (f"{SIZES} vit.depth=0", "vit.depth: found 0; input should be greater than 0"),
    (f"{SIZES} vit.depth=1.5", "vit.depth: found 1.5; input should be a valid integer"),
    ("lora={r: 0}", "lora.r: found 0; input should be greater than 0"),
    (f"{SIZES} vit.embed_dim=9", "vit: found {'embed_dim': 9, 'depth': 1, 'num_heads': 2}; embed_"),
    (f"{SIZES} vit.patch_size=7", "image_size is 384; it must be a multiple of 7"),
    ("reward={}", "reward: found {}; reward is empty; name one or more of cider, "),
    ("reward={bleu: 1}", "reward: found {'bleu': 1}; reward 'bleu' is unknown; choose from "),
    ("reward={cider: 0}", "reward: found {'cider': 0}; reward 'cider' has weight 0.0; give a"),
    ("reward={facts: 1}", "reward: facts needs facts_file: the file that describes each image's"),
    ("reward={cider: 1} reward_samples=1", "reward_samples is 1, but reward_baseline is others,"),
    ("reward={cider: 1} sharding=fsdp", "sharding is fsdp, which reward does not support; set it"),
    ("objective=", "objective is empty: name one, or a reward"),
    ("objective=smlie", "objective: found 'smlie'; objective 'smlie' is unknown; choose from "),
    ("metrics=[rouge]", f"metrics: found 'rouge'; input should be '{next(iter(EVALUATORS))}', "),
    ("select=cider", "select: found 'cider'; 'cider' is no metric; did you mean CIDEr?"),
    ("monitor=last", "monitor: found 'last'; 'last' is no metric"),
    ("prompt='a photo of'", "prompt: found 'a photo of'; end it with a space, or a caption's"),
    ("min_lr=1", "min_lr is 1.0, above init_lr, 1e-05"),
    ("top_p=1.5", "top_p is 1.5; it must be 1 or less"),
    ("sample=true num_beams=4 num_beam_groups=2", "num_beam_groups is 2 with num_beams 4 and samp"),
    ("num_beam_groups=2", "num_beam_groups is 2 with num_beams 3; it must divide num_beams of"),
    ("diversity_penalty=1", "diversity_penalty is 1.0, which makes groups of beams differ; raise"),
    ("rerank=itm", "rerank is itm, which needs itm_model"),
    ("drop_image=0.2 reward={cider: 1}", "drop_image is 0.2, which reward does not support; set"),
    ("input=exact", "input is 'exact', which commit f445f286 was the last to support"),
    ("attention_penalty=4", "attention_penalty is 4.0, but model blip has no attention; it is for"),
    ("model=lstm num_layers=2", "num_layers is 2; lstm has one layer"),
    ("model=sat teacher_forcing=exponential", "teacher_forcing_k is 10.0 with exponential;"),
    ("model=lstm first_token_shift=true", "first_token_shift is for model blip; this one is lstm"),
    ("model=sat lora={r: 4}", "lora is for models blip and vlm; this one is sat"),
    ("lora={load_in_4bit: true}", "lora.load_in_4bit is true, which is for model vlm"),
    ("vlm=other", "vlm is for model vlm; this one is blip"),
    (VLM, "vlm is missing: the folder or hub name of a model of transformers"),
    ("rerank=mmi candidates=beams num_beam_groups=3", "num_beam_groups is 3 with num_beams 20;"),
    ("model=vlm vlm=a/b", "augmentation is blip, which model vlm does not support; set it to none"),
    (f"{VLM} vlm=a/b reward={{cider: 1}}", "reward is {'cider': 1.0}, which model vlm does not"),
    (
        f"{VLM} vlm=a/b guidance_scale=2",
        "guidance_scale is 2.0 with num_beams 3, but model vlm has",
    ),
    (f"{VLM} vlm=a/b num_beams=4 num_beam_groups=2", "num_beam_groups is 2, which model vlm does"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "least.yaml"
    path.write_bytes(START)
    return path


def error_of(path, overrides, flags=None):
    with raises_line(UserError) as error:
        load_config(path, overrides, flags)
        pytest.fail(f"{overrides} {flags} is valid")
    return str(error.value).removeprefix(f"{path}: ").removeprefix("command line: ")


def types_of_keys():
    """Yield each key with its JSON types."""
    for key, found in Config.model_json_schema()["properties"].items():
        kinds = [kind for kind in found.get("anyOf", [found]) if "enum" not in kind]
        yield key, {kind.get("type") for kind in kinds}


@pytest.mark.parametrize("value", VALUES)
def test_every_key_refuses_other_types(path, value):
    wrong = [key for key, types in types_of_keys() if not types & VALUES[value]]
    assert len(wrong) > 50
    for key in wrong:
        line = error_of(path, [], {key: YAML(typ="safe").load(value)})
        assert line.startswith(f"{key}: found ") or key in ("lora", "vit", "vlm"), line


def test_every_number_is_limited(path):
    for key, types in types_of_keys():
        if types & {"integer", "number"} and key != "length_penalty":
            assert key in error_of(path, [f"{key}=-7"])
    for setting in OUT_OF_RANGE.split():
        assert error_of(path, [setting]).startswith(f"{setting.partition('=')[0]}: found ")


@pytest.mark.parametrize(("settings", "message"), LINES)
def test_the_line_says_what_is_wrong(path, settings, message):
    overrides = re.split(r" (?=[\w.]+=)", settings)  # at the spaces before a key
    assert error_of(path, overrides).startswith(message)


MED_CONFIGS = [
    *(({key: -1}, f".{key}: found -1; Input should be ") for key in MedConfig.model_fields),
    ({"hiden_size": 3}, ": unknown key 'hiden_size'; known keys are hidden_size, num_"),
    ({"hidden_size": 50}, ": hidden_size must be a multiple of num_attention_heads"),
    ("/no/such/file.json", ": cannot read /no/such/file.json"),
]


@pytest.mark.parametrize(("source", "message"), MED_CONFIGS)
def test_sizes_of_the_text_decoder_that_cannot_be_are_one_line(source, message):
    with raises_line(ValueError, start=f"med_config{message}"):
        read_med_config(source)
    assert read_med_config("configs/med_config.json") == MedConfig()


def test_an_empty_name_of_an_optional_file_is_none(path):
    names = [name for name in Config.model_fields if name.endswith(("_file", "_root"))]
    optional = [name for name in names if not Config.model_fields[name].is_required()]
    config = load_config(path, [f"{name}=''" for name in optional])
    assert len(optional) >= 7 and not any(getattr(config, name) for name in optional)


NO_TAG = "not valid YAML at line 3: could not determine a constructor for the tag '"
TENS = [f"&a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
ALIASES = f"prompt: [&a0 [x], {', '.join(TENS)}]".encode()  # of ten lists of ten lists ...
CONTENTS = [
    (b"# later", "expected lines of 'key: value', found None"),
    (b"image_root: \xe9", "not UTF-8 text at byte 12: convert it"),
    (b'{"image_root": "a", ', "not valid YAML at line 1: while parsing a flow node, expected the "),
    (START + b"image_root: c", "not valid YAML at line 3: while constructing a mapping, found dup"),
    (START + b"prompt: 2020-13-45", "not valid YAML: month must be in 1..12"),
    (START + b"prompt: " + b"[" * 700 + b"]" * 700, "not valid YAML: maximum recursion depth"),
    (START + ALIASES, "not valid YAML: more than 20 aliases"),
    (START + b"metrics: &a [*a]", "metrics: found [[...]]; input should be 'coco', "),
    (START + b"prompt: !!python/object/apply:os.mkdir [ran]", f"{NO_TAG}tag:yaml.org,2002:python"),
    (START + b"prompt: !mine a", f"{NO_TAG}!mine'"),
]


@pytest.mark.parametrize(("content", "message"), CONTENTS)
def test_a_bad_file_is_refused_in_one_line_and_nothing_is_run(
    tmp_path, monkeypatch, content, message
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with unchanged(tmp_path), raises_line(UserError, start=f"{path}: {message}"):
        load_config(path)  # one of the files would make a folder here


def test_an_override_is_read_as_safely_and_a_line_names_its_source(path):
    for override, line in {
        "reward=!!python/name:os.system": "override 'reward=!!python/name:os.system': not valid",
        "batch_size=0": "command line: ",
        "min_lr=1": f"{path}: ",
    }.items():
        with raises_line(UserError, start=line):
            load_config(path, [override])
