"""What the README and the pages in docs name and say is there, and works."""

import re
import subprocess
import sys

import pytest
from ruamel.yaml import YAML

from captioning.config import Config
from captioning.config.keys import ROLES, roles_of
from captioning.data.annotations import read_annotations
from smile import OBJECTIVES
from tests.documented_commands import OWN, Stage, Wrong, blocks

FOLDERS = "|".join(("configs", "scripts", "docs", *OWN))
FILE = rf"(?<![\w/])(?:{FOLDERS})/[\w/.-]*\.(?:yaml|json|sh|py|md)\b"
BARE_FILE = r"`(\w+\.py)`"  # of the folder that the text speaks of
LINK = r"\]\((?!https?:|#)([^)#\s]+)"
ANCHOR = r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)"


@pytest.fixture(autouse=True)
def in_the_repository(repository, monkeypatch):
    """Relative paths in a page start there."""
    monkeypatch.chdir(repository)


@pytest.fixture(scope="module")
def texts(repository):
    """Return the text of each page that a user reads, by its path."""
    named = ("README.md", "docs/*.md", "data/README.md", "checkpoints/README.md")
    found = sorted(path for pattern in named for path in repository.glob(pattern))
    return {page: page.read_text(encoding="utf-8") for page in found}


def test_every_command_of_every_page_can_be_called(repository, texts, tmp_path):
    wrong, stage = [], Stage(repository, tmp_path)
    commands = [(page, block) for page, text in texts.items() for block in blocks(text)]
    assert len(commands) > 20
    for page, block in commands:
        try:
            stage.check(block)
        except Wrong as error:
            wrong.append(f"{page.relative_to(repository)}: {error}")
    assert wrong == []


def test_files_and_headings_that_pages_name_exist(repository, texts):
    missing = []
    sources = {path.name for folder in OWN for path in (repository / folder).rglob("*.py")}
    for page, text in texts.items():
        named = [page.parent / link for link in re.findall(LINK, text)]
        named += [repository / name for name in re.findall(FILE, text)]
        missing += [(page.name, path) for path in named if not path.exists()]
        missing += [(page.name, name) for name in {*re.findall(BARE_FILE, text)} - sources]
        for link, anchor in re.findall(ANCHOR, text):
            target = (page.parent / link).resolve() if link else page
            headings = re.findall(r"^#+ (.+)$", texts[target].lower(), re.MULTILINE)
            # What GitHub calls them.
            anchors = [re.sub(r"[^\w\- ]", "", line).replace(" ", "-") for line in headings]
            missing += [(page.name, anchor)] * (anchor not in anchors)
    assert missing == []


def test_each_promise_of_reliability_has_a_test_in_the_quick_run(repository, texts):
    page = texts[repository / "docs" / "reliability.md"]
    named = set(re.findall(r"`(tests/[\w./-]+)`", page))
    assert len(named) > 20
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *named]
    command += ["-m", "not slow and not soak"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    quick = done.stdout.splitlines()
    assert [name for name in named if not any(line.startswith(name) for line in quick)] == []


def test_pages_are_reached_from_the_readme_which_is_short(repository, texts):
    readme = repository / "README.md"
    assert len(texts[readme].splitlines()) <= 150
    reached = [readme]
    for page in reached:  # which grows
        names = re.findall(LINK, page.read_text(encoding="utf-8"))
        linked = {(page.parent / name).resolve() for name in names if name.endswith(".md")}
        reached += linked - {*reached}
    assert texts.keys() <= {*reached}


def test_every_annotation_format_that_is_shown_can_be_read(repository, texts, tmp_path):
    page = texts[repository / "data" / "README.md"]
    examples = re.findall(r"^```(jsonl?|csv)\n(.*?)^```", page, re.S | re.M)
    assert [kind for kind, _ in examples] == ["json", "jsonl", "csv", "json"]
    for number, (kind, text) in enumerate(examples):
        file = tmp_path / f"{number}.{kind}"
        file.write_text(text, encoding="utf-8")
        samples = read_annotations(file, "test")
        assert samples[0].image_id == 42  # each example has the image number 42 first
        assert max(len(sample.captions) for sample in samples) == 2


ROW = re.compile(r"^\| (`.+?) \| ?(.*?) \| (.+) \|$", re.MULTILINE)
ROLE = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
VALUE = re.compile(r"-?[\d.e-]+|true|false|none|`[\w./-]+`")  # others are told in words


@pytest.fixture(scope="module")
def page(repository, texts):
    return texts[repository / "docs" / "settings.md"]


@pytest.fixture(scope="module")
def options(repository, texts):
    """The section on metrics' options."""
    return texts[repository / "docs" / "metrics.md"].split("## Options")[1].split("\n## ")[0]


@pytest.fixture(scope="module")
def rows(page, options):
    """The keys and the default of each row of the tables of keys."""
    tables = page.split("## Keys")[1].split("###", 1)[1].split("\n## ")[0] + options
    found = [(keys_in(keys), default) for keys, default, _ in ROW.findall(tables)]
    assert len(found) == sum(line.startswith("| `") for line in tables.splitlines())
    return found


def keys_in(text):
    return re.findall(r"`(\w+)`", text)


def first_cells(table):
    return [key for keys, *_ in ROW.findall(table) for key in keys_in(keys)]


def test_the_tables_have_every_key_and_no_other(rows):
    assert sorted(key for keys, _ in rows for key in keys) == sorted(Config.model_fields)


def test_the_roles_are_those_that_the_code_declares(page, options):
    """The table of roles names every key but those of `run`; options are of `scoring`."""
    table = page.split("## Keys")[1].split("###")[0]
    named = {role: keys_in(keys) for role, keys in ROLE.findall(table)}
    named["scoring"] += first_cells(options)
    generation = page.split("### Generation and scoring")[1].split("###")[0]
    others = {key for keys in named.values() for key in keys}
    named["generation"] = [key for key in first_cells(generation) if key not in others]
    found = sorted((role, key) for role, keys in named.items() for key in keys)
    declared = roles_of(Config).items()
    assert found == sorted((role, key) for key, role in declared if role != "run")
    assert {role for role, _ in found} == {*ROLES} - {"run"}


def test_the_tables_have_the_defaults_of_the_code(rows):
    config, checked = Config(image_root="a", ann_root="b", output_dir="c"), 0
    for keys, default in rows:
        values = [default] if len(keys) == 1 else default.split(", ")
        assert len(values) == len(keys) or not any(map(VALUE.fullmatch, values)), keys
        for key, shown in zip(keys, values):
            if VALUE.fullmatch(shown) and shown != "`batch_size`":  # another key's
                expected = None if shown == "none" else YAML(typ="safe").load(shown.strip("`"))
                assert getattr(config, key) == expected, key
                checked += 1
    assert checked > 60


def test_the_table_of_objectives_has_every_objective_and_no_other(page):
    table = page.split("## Objectives")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(OBJECTIVES)
