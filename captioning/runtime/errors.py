"""The one exception that a user's mistake ends in, and what is told of other people's errors."""

from typing import Optional


class UserError(Exception):
    """What was wrong, where, and what to do, in one line that is printed without a traceback."""


def one_line(error: object, most: Optional[int] = 100) -> str:
    """What an error, or a text, says on one line, cut to `most` characters; else its type."""
    return " ".join(str(error).split())[:most] or type(error).__name__
