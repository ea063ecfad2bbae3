"""Formats the scores of human captions and runs as a table, for the page and for the terminal."""

from collections.abc import Iterable, Sequence
from typing import Optional

from captioning.metrics.registry import METRICS, Metric, metric_of
from captioning.report.comparison import Row
from captioning.runtime.table import format_table

# The first metrics of the table, in this order. Other metrics that have a `meaning` follow.
FIRST = (
    "cap_len",
    "true_facts",
    "wrong_facts",
    "CHAIRs",
    "CHAIRi",
    "object_recall",
    "scene_R@1",
    "scene_R@5",
    "R@1",
    "R@5",
    "lex_div",
    "loops",
    "CIDEr",
    "Bleu_4",
    "METEOR",
    "SPICE",
    "CLIPScore",
    "PAC-S",
    "CLAIR",
    "PPL",
)


def score_table(
    rows: Sequence[Row], markdown: bool = False, columns: Optional[Sequence[Metric]] = None
) -> str:
    """Return the scores as Markdown with a line per row, or as text with a line per metric.

    columns: the metrics that are shown; by default those of `select_columns`.
    """
    columns = select_columns(rows) if columns is None else columns
    cells = [["", *(column.heading for column in columns)]]
    cells += [[row.label, *(format_value(column, row) for column in columns)] for row in rows]
    return format_table(cells if markdown else list(zip(*cells)), markdown)


def to_markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. lines: each line has a label and a value for each heading."""
    table = [["", *headings], ["---", *("---:" for _ in headings)], *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in table)


def rows_to_markdown(columns: Sequence[Metric], rows: Iterable[Row]) -> str:
    """Return a Markdown table with a line per row and a column per metric."""
    lines = [[row.label, *(format_value(column, row) for column in columns)] for row in rows]
    return to_markdown([column.heading for column in columns], lines)


def select_columns(rows: Iterable[Row]) -> list[Metric]:
    """Return the metrics for the table's columns: those of FIRST, then others.

    Each has a `meaning` (a text that explains it) and a value in at least one row.
    """
    present = {name for row in rows for name in row.metrics}
    metrics = (METRICS[name] for name in dict.fromkeys([*FIRST, *METRICS]) if name in present)
    return [metric.in_report() for metric in metrics if metric.meaning]


def other_columns(rows: Iterable[Row]) -> list[Metric]:
    """Return the metrics that have a value in at least one row but no `meaning`."""
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    return [metric for metric in map(metric_of, names) if not metric.meaning]


def format_value(column: Metric, row: Row) -> str:
    """Return a row's value and interval, such as "5.40 (5.14-5.66)"; "-" without a value."""
    value, *interval = format_cell(column, row) or ["-"]
    return f"{value} ({'-'.join(interval)})" if interval else value


def format_cell(column: Metric, row: Row) -> list[str]:
    """Return [value, low, high] as text, or [value] without an interval; [] without a value."""
    estimate = row.metrics.get(column.name)
    if estimate is None:
        return []
    numbers = [estimate.value]
    if estimate.low is not None and estimate.high is not None:
        numbers += [estimate.low, estimate.high]
    return [f"{number * column.factor:.{column.decimals}f}" for number in numbers]
