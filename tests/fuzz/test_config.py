"""Any configuration is either valid, and the same when written and read again, or one line.

Ranges: files of any bytes to 300 and any text to 300 characters; 1 to 4 overrides of which the key
is one of the configuration's (or two of them, or any text to 20), and the value a number of up to
400 digits, any text to 40, YAML's own words and marks, or a nesting of these up to 60 deep.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captioning.config import config_class, load_config, write_config
from captioning.runtime.errors import UserError
from tests.fuzz.examples import fuzzed

BASE = "image_root: images\nann_root: annotations\n"
INNER = ["embed_dim", "depth", "num_heads", "mle", "smile", "hidden_size", "a.b", ""]
MARKS = ["", "~", "null", "yes", "[]", "{}", "[1, 2]", "*a", "&a [*a]", "!!python/name:os.system"]
MARKS += [
    "!!binary x",
    "2001-99-99",
    "0x",
    "1e999",
    "-.inf",
    ".nan",
    "? a",
    "- - -",
    "|",
    "> ",
    "#",
]
MARKS += ["<<: 1", "{<<: [1]}", "{1: 2}", "{[1]: 2}", "{{}: 1}", "0o9", "1_0", "12:30:45", "@", "`"]
MARKS += ["!!int x", "!!float x", "!!timestamp x", "!!set {a}", "!!omap [a: 1]", "%YAML 9.9", "---"]
MARKS += ["base", "large", "coco", "[coco, length]", "{embed_dim: 8, depth: 1, num_heads: 2}"]
MARKS += ["{mle: 1}", "{mle: .inf}", "{mle: true}", "smile", "[bad", "a: b: c", "\t", "'", '"\\x"']

any_text = st.text(max_size=40)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**400), 10**400),
    st.integers(-3, 70),
    st.floats(),
    any_text,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
deep = st.builds(
    lambda n, mark: mark[0] * n + mark[1] * n,
    st.integers(1, 60),
    st.sampled_from([("[", "]"), ("{a: ", "}"), ("- ", "")]),
)
texts = st.one_of(any_text, st.sampled_from(MARKS), values.map(json.dumps), values.map(repr), deep)
names = st.sampled_from(sorted(config_class().model_fields))
keys = st.one_of(
    names,
    st.builds(".".join, st.tuples(names, st.sampled_from(INNER))),
    st.builds(".".join, st.tuples(names, st.sampled_from(INNER), st.text(max_size=5))),
    st.text(max_size=20),
)
overrides = st.lists(st.builds("{}={}".format, keys, texts) | st.text(max_size=20), max_size=4)


def encoded(text):
    return text.encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("config")


def valid_or_one_line(path, given_overrides=()):
    """The configuration, or None after one line that a terminal shows."""
    try:
        return load_config(path, given_overrides)
    except UserError as error:
        assert str(error) and len(str(error).splitlines()) == 1, repr(str(error))
        return None


def check(path, given_overrides=()):
    config = valid_or_one_line(path, given_overrides)
    if config is not None:
        write_config(config, path.with_name("written.yaml"))
        assert load_config(path.with_name("written.yaml")) == config
        config.build_objective()


@fuzzed(80)
@given(overrides)
def test_any_overrides(folder, given_overrides):
    path = folder / "base.yaml"
    path.write_text(BASE)
    check(path, given_overrides)


@fuzzed(60)
@given(st.binary(max_size=300) | st.text(max_size=300).map(encoded))
def test_any_bytes(folder, content):
    path = folder / "any.yaml"
    path.write_bytes(content)
    check(path)


@fuzzed(60)
@given(st.dictionaries(names | st.text(max_size=10), texts, max_size=4))
def test_any_file_of_known_keys(folder, lines):
    path = folder / "keys.yaml"
    text = BASE + "".join(f"{key}: {value}\n" for key, value in lines.items())
    path.write_bytes(encoded(text))
    check(path)
