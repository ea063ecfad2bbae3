"""What docs/settings.md, and docs/metrics.md of metrics' options, say of keys is what there is."""

import re

import pytest

from captioning.config import config_class, load_config
from captioning.config.keys import ROLES, roles_of
from smile import OBJECTIVES

ROW = r"^\| (`.+?) \| ?(.*?) \| (\w+) \| (.+) \|$"
VALUE = r"-?[\d.e-]+|true|false|none|`[\w./-]+`"  # others are told in words


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs" / "settings.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rows(page, repository):
    """Keys, default, role and meaning of each row of the tables of keys."""
    options = (
        (repository / "docs" / "metrics.md").read_text(encoding="utf-8").split("## Options")[1]
    )
    tables = page.split("## Keys")[1].split("\n## ")[0] + options.split("\n## ")[0]
    found = re.findall(ROW, tables, flags=re.MULTILINE)
    lines = [line for line in tables.splitlines() if line.startswith("| `")]
    assert len(found) == len(lines)
    return found


def test_the_tables_have_every_key_and_no_other(rows):
    named = [key for keys, *_ in rows for key in re.findall(r"`(\w+)`", keys)]
    assert sorted(named) == sorted(config_class().model_fields)


def test_every_key_has_the_role_that_the_code_declares_and_the_page_explains(page, rows):
    explained = page.split("## Keys")[1].split("###")[0]
    declared = roles_of(config_class())
    for keys, _, role, _ in rows:
        assert {declared[key] for key in re.findall(r"`(\w+)`", keys)} == {role}, keys
    for role in ROLES:
        assert f"`{role}`" in explained, role


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
    for keys, default, _, _ in rows:
        names = re.findall(r"`(\w+)`", keys)
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
