"""The table of human and runs' scores, for the page and for the terminal."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

from captioning.metrics.bootstrap import Estimate
from captioning.metrics.registry import METRICS, Metric, metric_of
from captioning.metrics.score_table import align
from captioning.report.comparison import Comparison, Row

# The first columns of the comparison. Other metrics with a meaning follow.
FIRST = (
    *("cap_len", "true_facts", "wrong_facts", "CHAIRs", "CHAIRi", "object_recall"),
    *("scene_R@1", "scene_R@5", "R@1", "R@5", "lex_div", "loops"),
    *("CIDEr", "Bleu_4", "METEOR", "SPICE", "CLIPScore", "PAC-S", "CLAIR", "PPL"),
)


class Cell(NamedTuple):
    value: str
    interval: Optional[tuple[str, str]]


class Table(NamedTuple):
    """columns, and rows of (label, kind, cells). A cell is None if there is no value."""

    columns: list[Metric]
    rows: list[tuple[str, str, list[Optional[Cell]]]]


def table_of(comparison: Comparison) -> Table:
    """The table of the comparison's columns, without columns that have no value."""
    return _table(comparison, columns_of(comparison.rows))


def other_metrics(comparison: Comparison) -> Table:
    """The metrics that `table_of` leaves out, with 3 decimals."""
    names = dict.fromkeys(name for row in comparison.rows for name in row.metrics)
    others = [m._replace(decimals=3) for m in map(metric_of, names) if not m.meaning]
    return _table(comparison, others)


def comparison_table(comparison: Comparison) -> str:
    """The table for a terminal: a line per metric; columns for human captions and each run."""
    rows = comparison.rows
    lines = [["", *(row.label for row in rows)]]
    lines += [[c.heading, *(shown_value(c, row) for row in rows)] for c in columns_of(rows)]
    return align(lines)


def in_markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table. lines: each line has a label and a value for each heading."""
    table = [["", *headings], ["---", *("---:" for _ in headings)], *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in table)


def columns_of(rows: Iterable[Row]) -> list[Metric]:
    """The comparison's columns for which at least one row has a value."""
    present = {name for row in rows for name in row.metrics}
    metrics = (METRICS[name] for name in dict.fromkeys((*FIRST, *METRICS)) if name in present)
    return [metric.in_report() for metric in metrics if metric.meaning]


def shown_value(column: Metric, row: Row) -> str:
    """The value with its interval, such as "5.40 (5.14-5.66)"; "-" without a value."""
    cell = _cell(column, row.metrics.get(column.name))
    if cell is None:
        return "-"
    return f"{cell.value} ({'-'.join(cell.interval)})" if cell.interval else cell.value


def _table(comparison: Comparison, columns: list[Metric]) -> Table:
    rows = [
        (row.label, row.kind, [_cell(column, row.metrics.get(column.name)) for column in columns])
        for row in comparison.rows
    ]
    return Table(columns, rows)


def _cell(column: Metric, estimate: Optional[Estimate]) -> Optional[Cell]:
    if estimate is None:
        return None
    ends = (estimate.value, estimate.low, estimate.high)
    value, low, high = (
        None if end is None else f"{end * column.factor:.{column.decimals}f}" for end in ends
    )
    return Cell(value, None if None in (low, high) else (low, high))
