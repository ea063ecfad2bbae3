"""The examples and checksums of data/README.md are those that the code reads and knows."""

import re

import pytest

from captioning.data.annotations import read_annotations
from captioning.data.sources import SHA256


@pytest.fixture
def page(repository):
    return (repository / "data" / "README.md").read_text(encoding="utf-8")


def test_every_format_shown_is_read(page, tmp_path):
    examples = re.findall(r"^```(json|csv)\n(.*?)^```", page, re.S | re.M)
    assert [kind for kind, _ in examples] == ["json", "csv", "json"]
    for number, (kind, text) in enumerate(examples):
        file = tmp_path / f"{number}.{kind}"
        file.write_text(text, encoding="utf-8")
        samples = read_annotations(file, "test")
        assert samples[0].image_id == 42  # each example has the image number 42 first
        assert max(len(sample.captions) for sample in samples) == 2


def test_checksums_are_those_that_downloads_are_checked_against(page):
    assert dict(re.findall(r"^\| `(\S+\.json)` \| `([0-9a-f]{64})` \|$", page, re.M)) == SHA256
