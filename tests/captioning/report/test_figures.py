"""The figures: one look, and what they show."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from captioning.metrics.bootstrap import Estimate
from captioning.report.comparison import Row
from captioning.report.figures import assign_styles, draw_curves, length_histogram, moving_average
from captioning.report.picture import load_picture
from captioning.report.plane import choose_axes, draw_plane
from captioning.report.runs import read_runs

FACTS = {"true_facts": Estimate(4.0, 3.5, 4.5, 5), "wrong_facts": Estimate(20.0, 15.0, 30.0, 5)}


def test_a_colour_is_that_of_one_objective():
    alone = {kind: assign_styles([kind])[0] for kind in ("humans", "mle", "smile", "mixture")}
    together = assign_styles(["humans", "mle", "mle", "mle", "smile", "mixture"])
    assert [together[i] for i in (0, 1, 4, 5)] == list(alone.values())
    assert len({style.colour for style in together}) == len({s.marker for s in together}) == 6


def test_plane_of_facts():
    rows = [Row("$Humans", "humans", {}, FACTS), Row("MLE", "mle", {}, FACTS)]
    labels = [axis.label for axis in choose_axes(rows)]
    assert labels == ["true facts a caption", "stated facts that are right (%)"]
    drawing = draw_plane(rows)
    assert "$Humans at 4.00, 80.00; MLE at 4.00, 80.00" in drawing


@pytest.mark.parametrize(
    "names, axes",
    [
        (("cap_len", "CIDEr"), ("words a caption", "CIDEr")),
        (("lex_div", "CLIPScore", "CIDEr"), ("distinct words", "CLIPScore")),
        (("cap_len", "CHAIRi", "CIDEr"), ("words a caption", "named objects that are there (%)")),
        (("cap_len", "true_facts"), None),
    ],
)
def test_plane_of_what_there_is(names, axes):
    rows = [
        Row(label, "mle", {}, dict.fromkeys(names, Estimate(0.5, None, None, 5))) for label in "ab"
    ]
    chosen = choose_axes(rows)
    assert (chosen and tuple(axis.label for axis in chosen)) == axes
    assert (draw_plane(rows) is None) == (axes is None)
    assert draw_plane(rows[:1]) is None


def test_curves(runs):
    titles, drawings = zip(*draw_curves(read_runs(runs, "test")))
    assert list(titles) == [
        "MLE loss in training, labels smoothed by 0.1",
        "SMILE loss in training",
        "Validation: CIDEr",
    ]
    assert "MLE+SMILE 0.3:0.7 ends at 0.500" in drawings[2]
    assert "SMILE ends" not in drawings[0].replace("MLE+SMILE", "")


def test_curves_of_a_run_by_rewards(make_run):
    drawn = [
        {"event": "step", "step": n, "reward": 0.5 * n, "length": 4.0, "facts": 1.0}
        for n in (10, 20)
    ]
    run = make_run("scst", None, log=False, reward={"facts": 1.0, "cider": 0.5})
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in drawn))
    (read,) = read_runs([run], "test")
    assert (read.kind, read.label) == ("reward", "reward true facts+CIDEr-D 1:0.5")
    titles, drawings = zip(*draw_curves([read]))
    assert titles == ("Reward in training", "Length in training")
    assert "ends at 10.000" in drawings[0] and "words per sampled caption" in drawings[1]


def test_smoothed():
    values = np.arange(60.0) % 2
    expected = [np.mean(values[max(i - 2, 0) : i + 3]) for i in range(60)]
    np.testing.assert_allclose(moving_average(values), expected)
    np.testing.assert_allclose(moving_average(np.array([3.0])), [3.0])


def test_lengths_and_svg():
    groups = [("Humans", "humans", ["a b", "a b c d"]), ("MLE", "mle", ["a"])]
    drawing = length_histogram(groups)
    assert drawing.startswith("<svg ") and "Humans 3.0, MLE 1.0" in drawing
    ids = re.findall(r'\bid="([^"]+)"', drawing)
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', drawing)
    assert all(name.startswith("lengths-") for name in ids) and set(used) <= set(ids)
    assert drawing == length_histogram(groups)


def test_pictures(tmp_path):
    Image.new("RGB", (96, 96)).save(tmp_path / "small.png")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (900, 1200, 3), np.uint8)).save(
        tmp_path / "large.png"
    )
    assert load_picture(tmp_path / "small.png").pixelated
    large = load_picture(tmp_path / "large.png")
    assert large.source.startswith("data:image/jpeg;base64,") and len(large.source) < 100_000
    assert load_picture(tmp_path / "absent.png") is None and load_picture(None) is None
