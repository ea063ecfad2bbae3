"""Predictions that do not match references: one line and exit code 2, or counted in warnings."""

import json

import pytest

from tests.programs import one_error_line, run_program, unchanged

REFERENCES = {"5": ["a man on a horse"], "6": ["two cats on a sofa"], "7": ["a bus"]}
EARLIER = {"metrics.json": '{"metrics": {}}', "per_caption.jsonl": "{}\n"}


def entries(*ids):
    return [{"image_id": image_id, "caption": f"caption {image_id}"} for image_id in ids]


REFUSED = [
    ([], "{p}: no predictions: nothing to score"),
    (
        [*entries(5), {"image_id": "5", "caption": "x"}],
        "{p}: row 2: image_id '5' occurs twice, with",
    ),
    (entries(8, 9), "predictions and references have no image id in common: the first ones are 8 "),
]
MISSING = "warning: {} of 3 images with references have no prediction and were not scored\n"
EXTRA = (
    "warning: {{p}}: {} of {} images with a prediction have no references and were not scored, the "
    "first is {!r}\n"
)
# predictions, how many are scored, what is said
COUNTED = {
    "both": (entries("x", 6, 9), 1, EXTRA.format(2, 3, "x") + MISSING.format(2)),
    "the same prediction twice": (entries(5, 6, 7, 5), 3, ""),
    "emoji, right to left": ([{"image_id": 5, "caption": "😀 كلب \ud83d"}, *entries(6, 7)], 3, ""),
}


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Return a function that scores predictions p, and the folder of its output."""
    monkeypatch.setenv("PATH", str(tmp_path))  # without Java, whose start takes seconds
    output = tmp_path / "output"
    output.mkdir()
    for name, content in EARLIER.items():
        (output / name).write_text(content)
    (tmp_path / "r.json").write_text(json.dumps(REFERENCES))

    def score(predictions):
        (tmp_path / "p.json").write_text(json.dumps(predictions))
        flags = ["--references", tmp_path / "r.json", "--output_dir", output, "--metrics", "length"]
        return run_program("captioning.evaluate", tmp_path / "p.json", *flags, "diversity")

    return score, output


@pytest.mark.parametrize(("predictions", "message"), REFUSED)
def test_what_cannot_be_scored_is_one_line_and_leaves_earlier_scores(call, predictions, message):
    score, output = call
    with unchanged(output):
        code, out, err = score(predictions)
    line = one_error_line(err, f"error: {message.format(p=output.parent / 'p.json')}")
    assert (code, out, err) == (2, "", f"{line}\n")


@pytest.mark.parametrize("kind", COUNTED)
def test_what_can_be_scored_is_and_a_warning_counts_the_rest(call, kind):
    score, output = call
    predictions, scored, message = COUNTED[kind]
    code, out, err = score(predictions)
    assert code == 0 and f"{scored} captions" in out
    assert err == message.format(p=output.parent / "p.json")
    metrics = json.loads((output / "metrics.json").read_text())["metrics"]
    assert metrics["cap_len"]["n"] == scored
    assert len((output / "per_caption.jsonl").read_text().splitlines()) == scored
