"""Defines the exception for a mistake of the user, and makes error texts printable."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from adapters.program import one_line as one_line

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


def visible(text: str) -> str:
    """Return the text with control characters escaped, so that a terminal does not interpret them.

    Tabs and newlines are not escaped.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
