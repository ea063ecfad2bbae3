"""What the README and the pages in docs name and say is there, and works."""

import re
import subprocess
import sys

import pytest

from captioning.config import Config
from captioning.config.keys import ROLES, roles_of
from captioning.data.annotations import read_annotations
from smile import OBJECTIVES
from tests.documented_commands import OWN, Stage, Wrong, blocks, pages

FOLDERS = "|".join(("configs", "scripts", "docs", *OWN))
FILE = rf"(?<![\w/])(?:{FOLDERS})/[\w/.-]*\.(?:yaml|json|sh|py|md)\b"
BARE_FILE = r"`(\w+\.py)`"  # of the folder that the text speaks of
LINK = r"\]\((?!https?:|#)([^)#\s]+)"
ANCHOR = r"\]\(([^)#\s]*)#([^)\s]+)\)"
MOST_LINES_OF_THE_README = 150


@pytest.fixture(autouse=True)
def in_the_repository(repository, monkeypatch):
    """Relative paths in a page start there."""
    monkeypatch.chdir(repository)


def test_every_command_of_every_page_can_be_called(repository, tmp_path):
    wrong, stage = [], Stage(repository, tmp_path)
    commands = [(page, block) for page in pages(repository) for block in blocks(page)]
    assert len(commands) > 20
    for page, block in commands:
        try:
            stage.check(block)
        except Wrong as error:
            wrong.append(f"{page.relative_to(repository)}: {error}")
    assert wrong == []


def test_files_that_pages_name_exist(repository):
    missing = []
    sources = {path.name for folder in OWN for path in (repository / folder).rglob("*.py")}
    for page in pages(repository):
        text = page.read_text(encoding="utf-8")
        named = [page.parent / link for link in re.findall(LINK, text)]
        named += [repository / name for name in re.findall(FILE, text)]
        missing += [f"{page.name}: {name}" for name in {*re.findall(BARE_FILE, text)} - sources]
        missing += [f"{page.name}: {path}" for path in named if not path.exists()]
    assert missing == []


def test_each_promise_of_reliability_has_a_test_in_the_quick_run(repository):
    text = (repository / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w./-]+)`", text))
    assert len(named) > 20
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *named]
    command += ["-m", "not slow and not soak"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    quick = done.stdout.splitlines()
    assert [name for name in named if not any(line.startswith(name) for line in quick)] == []


def test_headings_that_pages_link_to_exist(repository):
    missing = []
    for page in pages(repository):
        for link, anchor in re.findall(ANCHOR, page.read_text(encoding="utf-8")):
            target = page.parent / link if link else page
            if not link.startswith("http") and anchor not in anchors(target):
                missing.append((page.name, anchor))
    assert missing == []


def anchors(page):
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_pages_are_reached_from_the_readme_which_is_short(repository):
    readme = repository / "README.md"
    assert len(readme.read_text().splitlines()) <= MOST_LINES_OF_THE_README
    reached, waiting = set(), {readme}
    while waiting:
        page = waiting.pop()
        reached.add(page)
        names = re.findall(LINK, page.read_text(encoding="utf-8"))
        waiting |= {(page.parent / name).resolve() for name in names if name.endswith(".md")}
        waiting -= reached
    assert {*pages(repository)} <= reached


def test_every_annotation_format_that_is_shown_can_be_read(repository, tmp_path):
    page = (repository / "data" / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```(jsonl?|csv)\n(.*?)^```", page, re.S | re.M)
    assert [kind for kind, _ in examples] == ["json", "jsonl", "csv", "json"]
    for number, (kind, text) in enumerate(examples):
        file = tmp_path / f"{number}.{kind}"
        file.write_text(text, encoding="utf-8")
        samples = read_annotations(file, "test")
        assert samples[0].image_id == 42  # each example has the image number 42 first
        assert max(len(sample.captions) for sample in samples) == 2


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
    named = sorted(key for keys, *_ in rows for key in keys_in(keys))
    assert named == sorted(Config.model_fields)


def test_the_roles_are_those_that_the_code_declares(page, options):
    """The table of roles names every key but those of `run`; options are of `scoring`."""
    table = page.split("## Keys")[1].split("###")[0]
    named = {role: keys_in(keys) for role, keys in re.findall(ROLE, table, flags=re.MULTILINE)}
    named["scoring"] += first_cells(options)
    generation = page.split("### Generation and scoring")[1].split("###")[0]
    others = {key for keys in named.values() for key in keys}
    named["generation"] = [key for key in first_cells(generation) if key not in others]
    found = sorted((role, key) for role, keys in named.items() for key in keys)
    declared = roles_of(Config).items()
    assert found == sorted((role, key) for key, role in declared if role != "run")
    assert {role for role, _ in found} == {*ROLES} - {"run"}


def first_cells(table):
    return [key for keys, *_ in re.findall(ROW, table, re.MULTILINE) for key in keys_in(keys)]


def test_the_tables_have_the_defaults_of_the_code(rows):
    config = Config(image_root="a", ann_root="b", output_dir="c")
    known, checked = {"true": True, "false": False, "none": None}, 0
    for keys, default, _ in rows:
        names = keys_in(keys)
        values = [default] if len(names) == 1 else default.split(", ")
        in_words = not any(re.fullmatch(VALUE, value) for value in values)
        assert len(values) == len(names) or in_words, keys
        for name, shown in zip(names, values):
            if re.fullmatch(VALUE, shown) and shown != "`batch_size`":  # another key's
                text = shown.strip("`")
                expected = (
                    known[shown] if shown in known else text if text != shown else float(text)
                )
                assert getattr(config, name) == expected, name
                checked += 1
    assert checked > 60


def test_the_table_of_objectives_has_every_objective_and_no_other(page):
    table = page.split("## Objectives")[1].split("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    assert sorted(named) == sorted(OBJECTIVES)
