"""The numbers side by side."""

from captioning.metrics.bootstrap import Estimate
from captioning.report.comparison import Comparison, Row
from captioning.report.comparison_table import comparison_table, other_metrics, table_of


class TwoRows(Comparison):
    rows = (
        Row(
            "Humans",
            "humans",
            {},
            {"CIDEr": Estimate(0.9, None, None, 5), "Bleu_1": Estimate(0.5, None, None, 5)},
        ),
        Row(
            "MLE",
            "mle",
            {},
            {"CIDEr": Estimate(1.2344, 1.1, 1.3, 5), "lex_div": Estimate(0.042, None, None, 5)},
        ),
    )


COMPARISON = TwoRows("test", [], [])


def test_table_of():
    columns, rows = table_of(COMPARISON)
    assert [column.name for column in columns] == ["lex_div", "CIDEr"]
    assert rows[0] == ("Humans", "humans", [None, ("0.900", None)])
    assert rows[1] == ("MLE", "mle", [("42", None), ("1.234", ("1.100", "1.300"))])


def test_other_metrics():
    columns, rows = other_metrics(COMPARISON)
    assert [column.title for column in columns] == ["BLEU-1"]
    assert [cells for _, _, cells in rows] == [[("0.500", None)], [None]]


def test_for_the_terminal():
    assert comparison_table(COMPARISON).splitlines() == [
        "                Humans                  MLE",
        "Distinct words       -                   42",
        "CIDEr            0.900  1.234 (1.100-1.300)",
    ]
