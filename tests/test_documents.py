"""Every command, file and module that the README and the pages in docs name is there, and works."""

import importlib.util
import re

import pytest

from tests.documented_commands import OWN, Stage, Wrong, blocks, pages

FOLDERS = "|".join(("configs", "scripts", "docs", *OWN))
FILE = rf"(?<![\w/])(?:{FOLDERS})/[\w/.-]*\.(?:yaml|json|sh|py|md)\b"
BARE_FILE = r"`(\w+\.py)`"  # of the folder that the text speaks of
LINK = r"\]\((?!https?:|#)([^)#\s]+)"
ANCHOR = r"\]\(([^)#\s]*)#([^)\s]+)\)"
MOST_LINES_OF_THE_README = 150


@pytest.fixture(scope="module")
def stage(repository, tmp_path_factory):
    return Stage(repository, tmp_path_factory.mktemp("stage"))


@pytest.fixture(autouse=True)
def in_the_repository(repository, monkeypatch):
    """Relative paths in a page start there."""
    monkeypatch.chdir(repository)


def test_every_command_of_every_page(stage, repository):
    wrong, seen = [], 0
    for page in pages(repository):
        for block in blocks(page):
            seen += 1
            try:
                stage.check(block)
            except Wrong as error:
                wrong.append(f"{page.relative_to(repository)}: {error}")
    assert wrong == []
    assert seen > 20


def test_bash_says_what_a_block_calls(stage):
    block = """
    # a comment
    train="python -m captioning.train --config configs/caption_coco.yaml"
    for weight in 0.1 0.5; do  # and another
        $train objective="{mle: $weight, smile: 1}" \\
            output_dir=output/$weight
    done
    NNODES=2 RDZV_ENDPOINT=a:1 NPROC_PER_NODE=4 bash scripts/eval.sh batch_size=8
    """
    first, second, third = stage.commands(block)
    assert first.words == [
        *("python", "-m", "captioning.train", "--config", "configs/caption_coco.yaml"),
        *("objective={mle: 0.1, smile: 1}", "output_dir=output/0.1"),
    ]
    assert second.words[-1] == "output_dir=output/0.5" and not second.variables.keys() - {"weight"}
    assert third.words[1:7] == ["-m", "captioning.launch", "--nnodes", "2", "--nproc_per_node", "4"]
    assert third.words[-4:] == ["--evaluate", "--eval_split", "test", "batch_size=8"]
    assert third.variables["NNODES"] == "2"


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("bash scripts/tune.sh", "scripts/tune.sh: No such file"),
        ("bash scripts/train.sh configs/caption_coco.yml", "cannot read|does not exist"),
        ("bash scripts/train.sh batchsize=3", "unknown key 'batchsize'; did you mean"),
        ("bash scripts/eval.sh --eval_split tset", "invalid choice: 'tset'"),
        ("NPROC_PER_NOD=4 bash scripts/train.sh", "no script reads the variable NPROC_PER_NOD"),
        ("NPROC_PER_NODE=2 bash scripts/train.sh keey=1", "unknown key 'keey'"),
        ("python -m captioning.sweep configs/caption_coco.yaml --pretrain x.yaml", "no such file"),
        ("python -m captioning.tune", "no module captioning.tune"),
        ("python -m caption.train", "no module caption.train"),
        ("python -m captioning.files.reading", "does not read its arguments"),
        ("python -m captioning.launch --standalone train.py", "train.py is launched"),
        ("torchrun --processes 2 -m captioning.train", "unrecognized arguments|required"),
        ("python -m captioning.train --config configs/caption_coco.yaml | treee", "treee"),
        ("bash scripts/train.sh $undefined", "undefined: unbound variable"),
    ],
)
def test_what_is_wrong_with_a_command_is_found(stage, block, reason):
    with pytest.raises(Wrong, match=reason):
        stage.check(block)


def test_what_pages_name_exists(repository):
    missing = []
    sources = {path.name for folder in OWN for path in (repository / folder).rglob("*.py")}
    for page in pages(repository):
        text = page.read_text(encoding="utf-8")
        links = re.findall(LINK, text)
        named = [page.parent / link for link in links]
        named += [repository / name for name in re.findall(FILE, text)]
        bare = set(re.findall(BARE_FILE, text)) - sources
        missing += [f"{page.name}: {name}" for name in bare]
        missing += [f"{page.name}: {path}" for path in named if not path.exists()]
        for module in re.findall(r"\bpython -m ([\w.]+\w)", text):
            if module.split(".")[0] in OWN and importlib.util.find_spec(module) is None:
                missing.append(f"{page.name}: module {module}")
    assert missing == []


def test_headings_that_pages_link_to_exist(repository):
    missing, seen = [], 0
    for page in pages(repository):
        for link, anchor in re.findall(ANCHOR, page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                seen += 1
                target = page.parent / link if link else page
                if anchor not in anchors(target):
                    missing.append(f"{page.name}: {link}#{anchor}")
    assert missing == []
    assert seen > 5


def anchors(page):
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_readme_is_short(repository):
    assert len((repository / "README.md").read_text().splitlines()) <= MOST_LINES_OF_THE_README


def test_pages_are_reached_from_the_readme(repository):
    """A page that nothing links to is a page that nobody finds."""
    seen, waiting = set(), [repository / "README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        for link in re.findall(
            r"\]\((?!https?:|#)([^)#\s]+\.md)", page.read_text(encoding="utf-8")
        ):
            target = (page.parent / link).resolve()
            if target not in seen and target.exists():
                waiting.append(target)
    assert [page for page in pages(repository) if page not in seen] == []
