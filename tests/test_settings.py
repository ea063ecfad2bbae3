"""What docs/settings.md, and docs/metrics.md of metrics' options, say of keys is what there is."""

import re

import pytest

from captioning.config import config_class, load_config
from captioning.config.keys import ROLES, roles_of
from smile import OBJECTIVES

ROW = r"^\| (`.+?) \| ?(.*?) \| (.+) \|$"
ROLE = r"^\| `(\w+)` \| (.+) \|$"
VALUE = r"-?[\d.e-]+|true|false|none|`[\w./-]+`"  # others are told in words


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs" / "settings.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def options(repository):
    """The section on metrics' options."""
    text = (repository / "docs" / "metrics.md").read_text(encoding="utf-8")
    return text.split("## Options")[1].split("\n## ")[0]


@pytest.fixture(scope="module")
def rows(page, options):
    """Keys, default and meaning of each row of the tables of keys."""
    tables = page.split("## Keys")[1].split("###", 1)[1].split("\n## ")[0] + options
    found = re.findall(ROW, tables, flags=re.MULTILINE)
    lines = [line for line in tables.splitlines() if line.startswith("| `")]
    assert len(found) == len(lines)
    return found


def keys_in(text):
    return re.findall(r"`(\w+)`", text)


def test_the_tables_have_every_key_and_no_other(rows):
    named = [key for keys, *_ in rows for key in keys_in(keys)]
    declared = set(config_class().model_fields)
    assert set(named) - declared == set(), "docs have keys that no module declares"
    assert declared - set(named) == set(), "add a row to docs/settings.md or docs/metrics.md"
    assert len(named) == len(declared), "docs have a key twice"


def test_the_roles_are_those_that_the_code_declares(page, options):
    """The table of roles names every key but those of `run`; options are of `scoring`."""
    table = page.split("## Keys")[1].split("###")[0]
    named = {role: keys_in(keys) for role, keys in re.findall(ROLE, table, flags=re.MULTILINE)}
    named["scoring"] += first_cells(options)
    generation = page.split("### Generation and scoring")[1].split("###")[0]
    others = {key for keys in named.values() for key in keys}
    named["generation"] = [key for key in first_cells(generation) if key not in others]
    expected = {role: [] for role in ROLES if role != "run"}
    for key, role in roles_of(config_class()).items():
        if role != "run":
            expected[role].append(key)
    assert {role: sorted(keys) for role, keys in named.items()} == {
        role: sorted(keys) for role, keys in expected.items()
    }


def first_cells(table):
    return [key for keys, *_ in re.findall(ROW, table, re.MULTILINE) for key in keys_in(keys)]


def value_of(shown):
    known = {"true": True, "false": False, "none": None}
    if shown.startswith("`"):
        return shown.strip("`")
    return known[shown] if shown in known else float(shown)


def test_defaults(rows, tmp_path):
    path = tmp_path / "least.yaml"
    path.write_text("image_root: a\nann_root: b\n")
    config = config_class()(**load_config(path).model_dump())
    checked = 0
    for keys, default, _ in rows:
        names = keys_in(keys)
        values = [default] if len(names) == 1 else default.split(", ")
        in_words = not any(re.fullmatch(VALUE, value) for value in values)
        assert len(values) == len(names) or in_words, keys
        for name, shown in zip(names, values):
            if re.fullmatch(VALUE, shown) and shown != "`batch_size`":  # another key's
                assert getattr(config, name) == value_of(shown), name
                checked += 1
    assert checked > 60


def test_objectives(page):
    table = page.split("## Objectives")[1].split("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    assert sorted(named) == sorted(OBJECTIVES)
