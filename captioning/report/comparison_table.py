"""The scores of people and runs side by side, for the page and for the terminal."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

from captioning.metrics.bootstrap import Estimate
from captioning.metrics.score_table import COLUMNS as PRINTED
from captioning.report.comparison import Comparison, Row


class Column(NamedTuple):
    """A metric as it is shown: its value times `factor`, to so many digits."""

    metric: str
    title: str
    unit: str
    meaning: str
    digits: int = 1
    factor: float = 1.0

    @property
    def heading(self) -> str:
        return f"{self.title}, {self.unit}" if self.unit else self.title


def _as_printed(metric: str, meaning: str = "") -> Column:
    """With the title and digits that it has where scores are printed."""
    title, digits = PRINTED.get(metric, (metric, 3))
    return Column(metric, title, "", meaning, digits)


def _retrieved(metric: str, title: str, which: str) -> Column:
    return Column(metric, title, "%", f"self-retrieval: captions {which}")


COLUMNS = (
    Column("cap_len", "Length", "words", "words in a caption, on average"),
    Column("true_facts", "True facts", "a caption", "facts stated that the image bears out", 2),
    Column("wrong_facts", "Wrong facts", "%", "share of the stated facts that are not so"),
    Column("CHAIRs", "CHAIRs", "%", "captions that name an object which is not there"),
    Column("CHAIRi", "CHAIRi", "%", "share of the named objects that are not there"),
    Column("object_recall", "Objects named", "%", "share of the images' objects that are named"),
    _retrieved("scene_R@1", "R@1", "that fit their own image best of all"),
    _retrieved("scene_R@5", "R@5", "with their own image among the best five"),
    _retrieved("R@1", "CLIP R@1", "whose own image CLIP finds nearest of all"),
    _retrieved("R@5", "CLIP R@5", "with their image among CLIP's best five"),
    Column("lex_div", "Distinct words", "", "different words in all captions together", 0, 1000.0),
    Column("loops", "Loops", "%", "captions that say a phrase twice running"),
    _as_printed("CIDEr", "agreement with the references, rare phrases weighing more"),
    _as_printed("Bleu_4", "share of four-word phrases that a reference has"),
    _as_printed("METEOR", "words shared with a reference, synonyms and stems too"),
    _as_printed("SPICE", "objects, attributes and relations shared with references"),
    _as_printed("CLIPScore", "how well CLIP finds image and caption to agree"),
    _as_printed("PAC-S", "CLIPScore by weights that are made for captions"),
    _as_printed("CLAIR", "how likely a language model finds it to be of the references' image"),
    Column("PPL", "Perplexity", "", "how surprising GPT-2 finds the caption's words"),
)


class Cell(NamedTuple):
    value: str
    interval: Optional[tuple[str, str]]


class Table(NamedTuple):
    """columns, and (label, kind, cells) of each row; a cell is None where there is no value."""

    columns: list[Column]
    rows: list[tuple[str, str, list[Optional[Cell]]]]


def table_of(comparison: Comparison) -> Table:
    """The metrics that are compared, those of them that anyone has."""
    return _table(comparison, columns_of(comparison.rows))


def other_metrics(comparison: Comparison) -> Table:
    """Every metric that `table_of` leaves out."""
    shown = {column.metric for column in COLUMNS}
    names = dict.fromkeys(n for row in comparison.rows for n in row.metrics if n not in shown)
    return _table(comparison, [_as_printed(name)._replace(digits=3) for name in names])


def comparison_table(comparison: Comparison) -> str:
    """The table for a terminal: a line a metric, a column for the people and for each run."""
    rows = comparison.rows
    lines = [["", *(row.label for row in rows)]]
    lines += [[c.heading, *(shown_value(c, row) for row in rows)] for c in columns_of(rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    )


def in_markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of lines, each a label and as many values as there are headings."""
    table = [["", *headings], ["---", *("---:" for _ in headings)], *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in table)


def columns_of(rows: Iterable[Row]) -> list[Column]:
    """Those of COLUMNS that any of the rows has a value of."""
    present = {name for row in rows for name in row.metrics}
    return [column for column in COLUMNS if column.metric in present]


def shown_value(column: Column, row: Row) -> str:
    """The value with its interval, "5.40 (5.14-5.66)", or "-" where there is none."""
    cell = _cell(column, row.metrics.get(column.metric))
    if cell is None:
        return "-"
    return f"{cell.value} ({'-'.join(cell.interval)})" if cell.interval else cell.value


def _table(comparison: Comparison, columns: list[Column]) -> Table:
    rows = [
        (row.label, row.kind, [_cell(column, row.metrics.get(column.metric)) for column in columns])
        for row in comparison.rows
    ]
    return Table(columns, rows)


def _cell(column: Column, metric: Optional[Estimate]) -> Optional[Cell]:
    if metric is None:
        return None

    def text(value: float) -> str:
        return f"{value * column.factor:.{column.digits}f}"

    has_interval = metric.low is not None and metric.high is not None
    interval = (text(metric.low), text(metric.high)) if has_interval else None
    return Cell(text(metric.value), interval)
