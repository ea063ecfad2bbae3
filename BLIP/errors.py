"""What a person is told of an error: one line."""

import sys
from typing import Callable


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def exit_code(program: Callable[[], str]) -> int:
    """Run a program and print what it returns; 0, or 2 after one line of what is to be mended."""
    try:
        print(program())
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
