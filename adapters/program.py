"""Makes argument parsers of programs, and runs export programs with one-line errors."""

import argparse
import sys
from typing import Any, Callable, Optional


def program_parser(command: str, description: str, **options: Any) -> argparse.ArgumentParser:
    """Return a parser whose --help keeps the lines of the description, such as example commands.

    options: further arguments of ArgumentParser.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(
        command, description=description, formatter_class=formatter, **options
    )


def run_program(program: Callable[[], str]) -> int:
    """Run a program and print its result. Return the exit code: 0, or 2 after a one-line error.

    program: a function that returns a text about what it did. Only ValueError, OSError and
    ImportError become one line.
    """
    try:
        print(program())
    except (ValueError, OSError, ImportError) as error:
        # The message may have text of a checkpoint. Control characters are escaped, so that the
        # terminal does not execute them.
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in one_line(error, None))
        print(f"error: {line}", file=sys.stderr)
        return 2
    return 0


def one_line(error: object, max_length: Optional[int] = 100) -> str:
    """Return an error's text on one line, or the name of the error's type if the text is empty.

    max_length: the number of characters to which the text is cut; None for no limit.
    """
    return " ".join(str(error).split())[:max_length] or type(error).__name__
