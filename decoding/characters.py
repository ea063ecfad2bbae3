"""Handles captions in scripts without spaces between words: Chinese and Japanese."""

import re

# For a character class: Han and kana, their punctuation and full-width forms.
MARKS = "\u3000-\u303f\uff00-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
CHARACTERS = f"{MARKS}\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CHARACTER = re.compile(f"[{CHARACTERS}]")
_INNER = f"{CHARACTERS}\u00b7\u2014\u2018\u2019\u201c\u201d\u2026"  # quotation marks, dashes, dots
_SPACE = re.compile(
    rf"(?<=[{_INNER}]) (?=[{_INNER}0-9])|(?<=[0-9]) (?=[{_INNER}])| (?=[{MARKS}])|(?<=[{MARKS}]) "
)


def is_character(text: str) -> bool:
    """Return whether a text is a single such character."""
    return bool(_CHARACTER.fullmatch(text))


def join_characters(text: str) -> str:
    """Remove the spaces that a tokenizer puts between such characters, and around their marks.

    Numbers are joined to a character, words in Latin letters are not.
    """
    return _SPACE.sub("", text)
