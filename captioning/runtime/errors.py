"""The exception of a user's mistake, and texts of errors made fit to print."""

import re
from typing import Optional

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class UserError(Exception):
    """What was wrong, where, and what to do, in one line that is printed without a traceback."""


def one_line(error: object, most: Optional[int] = 100) -> str:
    """The text of an error on one line, cut to `most` characters; its type where it has none."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def visible(text: str) -> str:
    """A text with its control characters escaped, as a terminal would obey them.

    Tabs and line ends stay.
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
