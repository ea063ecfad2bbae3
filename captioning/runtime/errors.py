"""Defines the exception for a mistake of the user, and makes error texts printable."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Optional

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class UserError(Exception):
    """A mistake of the user. Its text is one line: what was wrong, where, and what to do.

    `captioning.runtime.program.run_program` prints the line without a traceback.
    """


@contextmanager
def value_errors_as_user_errors() -> Iterator[None]:
    """Within the block, turn a ValueError into a UserError. Can also be used as a decorator."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


def one_line(error: object, max_length: Optional[int] = 100) -> str:
    """Return an error's text on one line, or the name of the error's type if the text is empty.

    max_length: the number of characters to which the text is cut; None for no limit.
    """
    return " ".join(str(error).split())[:max_length] or type(error).__name__


def visible(text: str) -> str:
    """Return the text with control characters escaped, so that a terminal does not interpret them.

    Tabs and newlines are not escaped.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
