"""The figure and the table of a sweep, and means over seeds."""

import re

import pytest

from captioning.metrics.bootstrap import Estimate
from captioning.report.comparison import Row
from captioning.report.plane import choose_axes
from captioning.sweep.frontier import Entry, draw_frontier, markdown_table, pareto_front
from captioning.sweep.over_seeds import mean_over_seeds


def entry(label, kind, facts, wrong, weight=None):
    metrics = {
        "true_facts": Estimate(facts, facts - 0.25, facts + 0.25, 5),
        "wrong_facts": Estimate(wrong, wrong - 1, wrong + 2, 5),
        "lex_div": Estimate(0.05, None, None, 5),
    }
    return Entry(Row(label, kind, {}, metrics), weight)


MIXTURES = [
    entry("Humans", "humans", 3, 0),
    entry("SMILE", "smile", 6, 10, 0.0),
    entry("MLE", "mle", 2, 5, 1.0),
    entry("0.01 MLE + 0.99 SMILE", "mixture", 5.5, 7, 0.01),
]
OTHERS = [entry("random subset of 10", "random", 2.5, 6), entry("reverse", "reverse", 1, 50)]


def line_of(svg):
    """Return the corners of the lines with three points, in the drawing's coordinates."""
    found = []
    for path in re.findall(r'<path d="([^"]*)"[^>]*/>', svg, re.S):
        corners = re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)
        if len(corners) == 3 and "z" not in path:
            found.append([tuple(map(float, corner)) for corner in corners])
    return found


def test_mixtures_are_joined_in_the_order_of_their_weights(tmp_path):
    path = tmp_path / "frontier.svg"
    told = draw_frontier(MIXTURES, path)
    assert told == (
        "stated facts that are right (%) against true facts a caption: Humans at 3.00, 100.00; "
        "SMILE at 6.00, 90.00; 0.01 at 5.50, 93.00; MLE at 2.00, 95.00"
    )
    (line,) = line_of(path.read_text())
    (x0, y0), (x1, y1), (x2, y2) = line  # SMILE, 0.01, MLE; y is counted from above
    assert (x0 - x1) / (x0 - x2) == pytest.approx((6 - 5.5) / (6 - 2), abs=1e-3)
    assert (y0 - y1) / (y0 - y2) == pytest.approx((93 - 90) / (95 - 90), abs=1e-3)
    again = tmp_path / "again.svg"
    draw_frontier([MIXTURES[0], *MIXTURES[:0:-1]], again)
    assert again.read_text() == path.read_text()


def test_the_frontier_of_all_is_what_no_other_beats():
    found = pareto_front([*MIXTURES[1:], *OTHERS], choose_axes([e.row for e in MIXTURES]))
    assert [e.row.label for e in found] == [
        *("MLE", "random subset of 10", "0.01 MLE + 0.99 SMILE", "SMILE")
    ]
    same = [entry("one", "a", 1, 5), entry("as good", "b", 1, 5), entry("worse", "c", 1, 6)]
    assert pareto_front(same, choose_axes([e.row for e in same])) == same[:2]


def test_ablations_have_a_panel_of_their_own_with_the_line_behind_them(tmp_path):
    told = draw_frontier([*MIXTURES, *OTHERS], tmp_path / "f.svg")
    assert told.count("SMILE at 6.00, 90.00") == told.count("MLE at 2.00, 95.00") == 1
    assert told.count("Humans") == told.count("random subset of 10 at 2.50, 94.00") == 1
    # The mixtures' line in both panels, and the legend's sample of the frontier.
    assert len(line_of((tmp_path / "f.svg").read_text())) == 3
    assert "reverse at 1.00, 50.00" in draw_frontier(OTHERS, tmp_path / "f.png")  # no mixtures
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_fewer_than_two_points_give_no_figure(tmp_path):
    assert draw_frontier(MIXTURES[1:2], tmp_path / "f.svg") is None
    names = ["CIDEr", "CIDEr", "lex_div", "lex_div"]  # no run has both
    apart = [Entry(Row(name, "mle", {}, {name: Estimate(1.0, None, None, 5)})) for name in names]
    assert choose_axes([entry.row for entry in apart]) is None
    assert draw_frontier(apart, tmp_path / "f.svg") is None
    assert not (tmp_path / "f.svg").exists()


def test_the_table_has_a_line_a_run_with_intervals():
    without = Entry(Row("x", "mle", {}, {"true_facts": Estimate(4.0, None, None, 5)}))
    assert markdown_table([MIXTURES[3], without]).splitlines() == [
        "|  | True facts, a caption | Wrong facts, % | Distinct words |",
        "| --- | ---: | ---: | ---: |",
        "| 0.01 MLE + 0.99 SMILE | 5.50 (5.25-5.75) | 7.0 (6.0-9.0) | 50 |",
        "| x | 4.00 | - | - |",
    ]


def row(**metrics):
    return Row("a run", "smile", {1: "a dog"}, metrics)


def test_means_over_seeds_have_intervals_over_images_and_seeds():
    rows = [
        row(
            CIDEr=Estimate(value, value - 0.98, value + 0.98, 300),
            lex_div=Estimate(1, None, None, 300),
        )
        for value in (11.0, 12.0, 16.0)
    ]
    rows[0].metrics["PPL"] = Estimate(5, 4, 6, 300)  # the others lack it
    found = mean_over_seeds(rows, "SMILE")
    assert (found.label, found.kind, set(found.metrics)) == ("SMILE", "smile", {"CIDEr", "lex_div"})
    # Images: (1.96 / 3.92) ** 2 = 0.25; seeds: 7, by three, of which two degrees are left.
    reach = (1.96**2 * 0.25 + 4.303**2 * 7 / 3) ** 0.5
    cider = found.metrics["CIDEr"]
    assert (cider.value, cider.n) == (13.0, 300)
    assert (cider.low, cider.high) == pytest.approx((13 - reach, 13 + reach))
    assert found.metrics["lex_div"] == Estimate(1, None, None, 300)
    assert mean_over_seeds(rows[:1], "SMILE") is rows[0]


def test_a_share_is_not_below_zero():
    found = mean_over_seeds([row(loops=Estimate(v, 0.0, 2 * v, 9)) for v in (0.0, 0.0, 3.0)], "")
    assert found.metrics["loops"].low == 0 < 2 < found.metrics["loops"].high
