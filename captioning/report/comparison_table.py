"""Formats the scores of human captions and runs as a table, for the page and for the terminal."""

from collections.abc import Sequence

from captioning.metrics.base import Metric, all_metrics, metric_of
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


def score_table(rows: Sequence[Row], markdown: bool = False) -> str:
    """Return the scores as Markdown with a line per row, or as text with a line per metric."""
    cells = score_cells(rows, select_columns(rows))
    return format_table(cells if markdown else list(zip(*cells)), markdown)


def score_cells(rows: Sequence[Row], columns: Sequence[Metric]) -> list[list[str]]:
    """Return a table's cells: the headings, then a line per row with its label and scores."""
    headings = ["", *(column.heading for column in columns)]
    return [headings, *([row.label, *(format_value(c, row) for c in columns)] for row in rows)]


def select_columns(rows: Sequence[Row], explained: bool = True) -> list[Metric]:
    """Return the metrics that have a value in at least one row: those of FIRST, then others.

    explained: whether these are the metrics with a `meaning`, or the metrics without one.
    """
    present = {name for row in rows for name in row.metrics}
    names = dict.fromkeys([*FIRST, *all_metrics(), *sorted(present)])
    metrics = (metric_of(name).in_report() for name in names if name in present)
    return [metric for metric in metrics if bool(metric.meaning) == explained]


def format_value(column: Metric, row: Row) -> str:
    """Return a row's value and interval, such as "5.40 (5.14-5.66)"; "-" without a value."""
    estimate = row.metrics.get(column.name)
    if estimate is None:
        return "-"

    def text(number):
        return f"{number * column.factor:.{column.decimals}f}"

    interval = "" if estimate.low is None else f" ({text(estimate.low)}-{text(estimate.high)})"
    return text(estimate.value) + interval
