"""The page on captioning names every flag and suffix."""

import re

import pytest

from captioning.caption import build_parser
from captioning.files.images import SUFFIXES


@pytest.fixture
def page(repository):
    return (repository / "docs" / "captioning.md").read_text(encoding="utf-8")


def test_the_table_has_every_flag_and_no_other(page):
    table = page.split("## Flags")[1].split("##")[0]
    rows = re.findall(r"^\| (.+?) \|", table, re.M)
    named = {flag for row in rows for flag in re.findall(r"--[\w-]+", row)}
    flags = {flag for action in build_parser()._actions for flag in action.option_strings}
    twice = {"--retry_failed", "--write_shards", "--backend"}  # of earlier versions
    assert named == flags - twice - {"-h", "--help"}


def test_the_suffixes_of_images_are_those_that_are_read(page):
    listed = page.split("a folder of")[1].split("files (")[0]
    assert set(re.findall(r"`(\.\w+)`", listed)) == SUFFIXES
