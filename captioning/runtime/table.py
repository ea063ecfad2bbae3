"""Formats a table as text for a terminal, or as Markdown."""

from collections.abc import Sequence


def format_table(rows: Sequence[Sequence[str]], markdown: bool = False) -> str:
    """Return lines of equal numbers of cells as a table; the headings are the first line.

    The first column is left-aligned, the others are right-aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    if not markdown:
        return "\n".join("  ".join(line).rstrip() for line in lines)
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
