"""The page on captioning names flags that exist, and every suffix."""

import re

import pytest

from captioning.caption import build_parser
from captioning.files.images import SUFFIXES


@pytest.fixture
def page(repository):
    return (repository / "docs" / "captioning.md").read_text(encoding="utf-8")


def test_the_page_names_flags_that_exist(page):
    named = set(re.findall(r"`(--[\w-]+)", page))
    flags = {flag for action in build_parser()._actions for flag in action.option_strings}
    assert len(named) > 10 and named <= flags


def test_help_describes_every_flag():
    assert all(action.help for action in build_parser()._actions)


def test_the_suffixes_of_images_are_those_that_are_read(page):
    listed = page.split("a folder of")[1].split("files (")[0]
    assert set(re.findall(r"`(\.\w+)`", listed)) == SUFFIXES
