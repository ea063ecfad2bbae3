"""One table as text and as Markdown."""

from captioning.runtime.table import format_table


def test_the_first_column_is_on_the_left_and_the_others_on_the_right():
    rows = [["", "words", "R@1"], ["MLE", "4.5", "13.2"], ["SMILE", "11.1", "-"]]
    text = ["       words   R@1", "MLE      4.5  13.2", "SMILE   11.1     -"]
    assert format_table(rows).split("\n") == text
    assert format_table([["a", ""], ["b", ""]]) == "a\nb"
    markdown = [
        "|       | words |  R@1 |",
        "| ----- | ----: | ---: |",
        "| MLE   |   4.5 | 13.2 |",
        "| SMILE |  11.1 |    - |",
    ]
    assert format_table(rows, markdown=True).split("\n") == markdown
