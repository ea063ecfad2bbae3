"""The exception for a user's mistake, and functions that make error texts printable."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Optional

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class UserError(Exception):
    """One line that says what was wrong, where, and what to do. Printed without a traceback."""


@contextmanager
def value_errors_as_user_errors() -> Iterator[None]:
    """Within the block, raise a UserError instead of a ValueError. Also a decorator."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


def one_line(error: object, max_length: Optional[int] = 100) -> str:
    """Return an error's text on one line, cut to `max_length` characters; its type without text."""
    return " ".join(str(error).split())[:max_length] or type(error).__name__


def visible(text: str) -> str:
    """Return the text with control characters escaped, so that a terminal does not execute them.

    Tabs and newlines stay.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
