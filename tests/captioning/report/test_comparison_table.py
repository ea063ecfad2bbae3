"""The numbers side by side."""

from captioning.metrics.bootstrap import Estimate
from captioning.report.comparison import Comparison, Row
from captioning.report.comparison_table import (
    comparison_table,
    format_cell,
    other_columns,
    select_columns,
)


def estimate(value, low=None, high=None):
    return Estimate(value, low, high, 5)


class TwoRows(Comparison):
    rows = (
        Row("Humans", "humans", {}, {"CIDEr": estimate(0.9), "Bleu_1": estimate(0.5)}),
        Row("MLE", "mle", {}, {"CIDEr": estimate(1.2344, 1.1, 1.3), "lex_div": estimate(0.042)}),
    )


def test_columns_and_cells():
    humans, mle = TwoRows.rows
    columns = select_columns(TwoRows.rows)
    assert [column.name for column in columns] == ["lex_div", "CIDEr"]
    assert [format_cell(column, humans) for column in columns] == [[], ["0.900"]]
    assert [format_cell(column, mle) for column in columns] == [["42"], ["1.234", "1.100", "1.300"]]
    [other] = other_columns(TwoRows.rows)
    assert (other.title, format_cell(other, humans), format_cell(other, mle)) == (
        "BLEU-1",
        ["0.500"],
        [],
    )


def test_for_the_terminal():
    assert comparison_table(TwoRows("test", [], [])).splitlines() == [
        "                Humans                  MLE",
        "Distinct words       -                   42",
        "CIDEr            0.900  1.234 (1.100-1.300)",
    ]
