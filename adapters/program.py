"""How an export program ends: it prints its result, or an error as one line."""

import sys
from typing import Callable, Optional


def exit_code(program: Callable[[], str]) -> int:
    """Run a program and print its result. Return 0, or 2 after a one-line error."""
    try:
        print(program())
    except (ValueError, OSError, ImportError) as error:
        # The text may come from a checkpoint, and a terminal would obey its control characters.
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in one_line(error, None))
        print(f"error: {line}", file=sys.stderr)
        return 2
    return 0


def one_line(error: Exception, max_length: Optional[int] = 200) -> str:
    """Return an error's message on one line, truncated to `max_length`, or its type without one."""
    return " ".join(str(error).split())[:max_length] or type(error).__name__
