"""The one exception that a user's mistake ends in, and what is told of other people's errors."""

import re
from typing import Optional

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class UserError(Exception):
    """What was wrong, where, and what to do, in one line that is printed without a traceback."""


def one_line(error: object, most: Optional[int] = 100) -> str:
    """What an error, or a text, says on one line, cut to `most` characters; else its type."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def visible(text: str) -> str:
    """A text for a terminal, which would obey control characters, as of a file's name: written out.

    Tabs and the ends of lines stay.
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
