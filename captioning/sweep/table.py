"""A sweep's scores as a table in Markdown: a line a run, with 95 % intervals."""

from collections.abc import Sequence

from captioning.report.table import COLUMNS, Column, shown_value
from captioning.sweep.frontier import Entry

# The length, what is said and what of it is right, self-retrieval, and agreement with references.
SHOWN = (
    *("cap_len", "true_facts", "wrong_facts", "scene_R@1", "R@1", "lex_div"),
    *("CIDEr", "CLIPScore", "PPL"),
)


def markdown_table(entries: Sequence[Entry]) -> str:
    """The columns are those of SHOWN that an entry has."""
    columns = [
        column
        for column in COLUMNS
        if column.metric in SHOWN and any(column.metric in e.row.metrics for e in entries)
    ]
    lines = [["", *map(_title, columns)], ["---", *("---:" for _ in columns)]]
    for entry in entries:
        values = [shown_value(column, entry.row.metrics.get(column.metric)) for column in columns]
        lines.append([entry.label, *values])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _title(column: Column) -> str:
    return f"{column.title}, {column.unit}" if column.unit else column.title
