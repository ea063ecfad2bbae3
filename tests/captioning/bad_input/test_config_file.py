"""Configuration files that are not one, are too large, or would run something."""

import pytest

from captioning.config import load_config
from captioning.runtime.errors import UserError
from tests.programs import raises_line, unchanged

START = b"image_root: a\nann_root: b\n"
NO_TAG = "not valid YAML at line 3: could not determine a constructor for the tag '"


TENS = [f"&a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
ALIASES = f"prompt: [&a0 [x], {', '.join(TENS)}]".encode()  # of ten lists of ten lists ...


CONTENTS = [
    (b"# later", "expected lines of 'key: value', found None"),
    (b"image_root: \xe9", "not UTF-8 text at byte 12: convert it"),
    (b'{"image_root": "a", ', "not valid YAML at line 1: while parsing a flow node, expected the "),
    (START + b"image_root: c", "not valid YAML at line 3: while constructing a mapping, found dup"),
    (START + b"prompt: 2020-13-45", "not valid YAML: month must be in 1..12"),
    (START + b"prompt: " + b"[" * 700 + b"]" * 700, "not valid YAML: it is nested too deeply"),
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


def test_an_override_is_read_as_safely_and_a_line_names_its_source(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(START)
    for override, line in {
        "reward=!!python/name:os.system": "override 'reward=!!python/name:os.system': not valid",
        "batch_size=0": "command line: ",
        "min_lr=1": f"{path}: ",
    }.items():
        with raises_line(UserError, start=line):
            load_config(path, [override])
