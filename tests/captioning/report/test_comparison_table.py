"""The numbers side by side."""

from captioning.metrics.bootstrap import Estimate
from captioning.report.comparison import Comparison, Row
from captioning.report.comparison_table import comparison_table, other_metrics, table_of


def estimate(value, low=None, high=None):
    return Estimate(value, low, high, 5)


class TwoRows(Comparison):
    rows = (
        Row("Humans", "humans", {}, {"CIDEr": estimate(0.9), "Bleu_1": estimate(0.5)}),
        Row("MLE", "mle", {}, {"CIDEr": estimate(1.2344, 1.1, 1.3), "lex_div": estimate(0.042)}),
    )


COMPARISON = TwoRows("test", [], [])


def test_table_of():
    columns, rows = table_of(COMPARISON)
    assert [column.name for column in columns] == ["lex_div", "CIDEr"]
    assert rows[0] == ("Humans", "humans", [None, ("0.900", None)])
    assert rows[1] == ("MLE", "mle", [("42", None), ("1.234", ("1.100", "1.300"))])
    columns, rows = other_metrics(COMPARISON)
    assert [column.title for column in columns] == ["BLEU-1"]
    assert [cells for _, _, cells in rows] == [[("0.500", None)], [None]]


def test_for_the_terminal():
    assert comparison_table(COMPARISON).splitlines() == [
        "                Humans                  MLE",
        "Distinct words       -                   42",
        "CIDEr            0.900  1.234 (1.100-1.300)",
    ]
