"""Predictions that do not match references: one line and exit code 2, or counted in warnings."""

import json

import pytest

from tests.programs import one_error_line, run_program, unchanged

REFERENCES = {"5": ["a man on a horse"], "6": ["two cats on a sofa"], "7": ["a bus"]}
EARLIER = {"metrics.json": '{"metrics": {}}', "per_caption.jsonl": "{}\n"}


def entries(*ids):
    return [{"image_id": image_id, "caption": f"caption {image_id}"} for image_id in ids]


@pytest.fixture
def score(tmp_path, monkeypatch):
    """Return a function that scores predictions, p.json; the output is in `output`."""
    monkeypatch.setenv("PATH", str(tmp_path))  # without Java, whose start takes seconds
    (tmp_path / "output").mkdir()
    for name, content in EARLIER.items():
        (tmp_path / "output" / name).write_text(content)
    (tmp_path / "r.json").write_text(json.dumps(REFERENCES))

    def call(predictions):
        (tmp_path / "p.json").write_text(json.dumps(predictions))
        flags = ["--references", tmp_path / "r.json", "--output_dir", tmp_path / "output"]
        metrics = ["--metrics", "length", "diversity"]
        return run_program("captioning.evaluate", tmp_path / "p.json", *flags, *metrics)

    return call


def test_what_cannot_be_scored_is_one_line_and_leaves_earlier_scores(score, tmp_path):
    refused = {
        f"{tmp_path}/p.json: no predictions: nothing to score": [],
        "predictions and references have no image id in common: the first ones are 8 and '5'": (
            entries(8, 9)
        ),
    }
    for message, predictions in refused.items():
        with unchanged(tmp_path / "output"):
            code, out, err = score(predictions)
        line = one_error_line(err, f"error: {message}")
        assert (code, out, err) == (2, "", f"{line}\n")


def test_what_can_be_scored_is_and_warnings_count_the_rest(score, tmp_path):
    odd = {"image_id": 5, "caption": "😀 كلب \ud83d"}  # emoji, right to left, half a character
    for predictions, scored in (([odd, *entries(6, 7), odd], 3), (entries("x", 6, 9), 1)):
        code, out, err = score(predictions)
        assert code == 0 and f"{scored} captions" in out
        metrics = json.loads((tmp_path / "output/metrics.json").read_text())["metrics"]
        assert metrics["cap_len"]["n"] == scored
        lines = (tmp_path / "output/per_caption.jsonl").read_text().splitlines()
        assert len(lines) == scored and (err == "") == (scored == 3)
    assert err == (
        f"warning: {tmp_path}/p.json: 2 of 3 images with a prediction have no references and were "
        "not scored, the first is 'x'\nwarning: 2 of 3 images with references have no prediction "
        "and were not scored\n"
    )
