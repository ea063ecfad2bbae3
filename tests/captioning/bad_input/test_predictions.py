"""Predictions that do not match references: one line and exit code 2, or counted in warnings."""

import json

import pytest

from tests.programs import one_error_line, run_program, unchanged

REFERENCES = {"5": ["a man on a horse"], "6": ["two cats on a sofa"], "7": ["a bus"]}
EARLIER = {"metrics.json": '{"metrics": {}}', "per_caption.jsonl": "{}\n"}


def entries(*ids):
    return [{"image_id": image_id, "caption": f"caption {image_id}"} for image_id in ids]


NO_ID = "entry 1 has no image_id (an integer or a string)"
OTHER = {"image_id": 5, "caption": "another"}
# predictions, what is said, references instead of REFERENCES
REFUSED = [
    ([], "{p}: the list of predictions is empty: nothing to score"),
    ('[{"image_id": 5, "cap', "{p}: not valid JSON at line 1 (Unterminated string"),
    ({"5": "a man"}, "{p}: expected a list of {{image_id, caption}}, as COCO results are"),
    (["a man"], f"{{p}}: {NO_ID}"),
    (entries(True), f"{{p}}: {NO_ID}"),
    ([{"image_id": 5}], "{p}: entry 1 (image_id 5) has no caption text"),
    ([*entries(5, 6), OTHER], "{p}: image_id 5 occurs twice, with two captions: keep one of them"),
    (entries(5, "5"), "image_id 5 and '5' are the same image with two predictions: keep one of"),
    (entries(8, 9), "predictions and references have no image id in common: the first ones are 8 "),
    (entries(5), "{r}: no reference captions: check that this is the right file", {}),
    (entries(5), f"{{r}}: annotations: {NO_ID}", {"annotations": [{"caption": "a man"}]}),
    (entries(5), "{r}: no reference captions under '5': expected COCO's", {"5": "a man"}),
]

MISSING = "warning: {} of 3 images with references have no prediction and were not scored\n"
EXTRA = (
    "warning: {{p}}: {} of {} images with a prediction have no references and were not scored, the "
    "first is {!r}\n"
)
# predictions, how many are scored, what is said
COUNTED = {
    "all": (entries(5, 6, 7), 3, ""),
    "both": (entries("x", 6, 9), 1, EXTRA.format(2, 3, "x") + MISSING.format(2)),
    "the same prediction twice": (entries(5, 6, 7, 5), 3, ""),
    "emoji, right to left": ([{"image_id": 5, "caption": "😀 كلب \ud83d"}, *entries(6, 7)], 3, ""),
}


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Return a function that scores, and its files: p, predictions; r, references; and output."""
    monkeypatch.setenv("PATH", str(tmp_path))  # without Java, whose start takes seconds
    names = {"p": tmp_path / "results.json", "r": tmp_path / "references.json"}
    output = tmp_path / "output"
    output.mkdir()
    for name, content in EARLIER.items():
        (output / name).write_text(content)

    def score(predictions, references):
        for path, content in zip(names.values(), (predictions, references)):
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        arguments = [names["p"], "--references", names["r"], "--output_dir", output]
        return run_program("captioning.evaluate", *arguments, "--metrics", "length", "diversity")

    return score, names, output


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_scored_is_one_line_and_leaves_earlier_scores(call, case):
    score, names, output = call
    predictions, message, *references = case
    with unchanged(output):
        code, out, err = score(predictions, *(references or [REFERENCES]))
    line = one_error_line(err, f"error: {message.format(**names)}")
    assert (code, out, err) == (2, "", f"{line}\n")


@pytest.mark.parametrize("kind", COUNTED)
def test_what_can_be_scored_is_and_a_warning_counts_the_rest(call, kind):
    score, names, output = call
    predictions, scored, message = COUNTED[kind]
    code, out, err = score(predictions, REFERENCES)
    assert code == 0 and f"{scored} captions" in out
    assert err == message.format(**names)
    metrics = json.loads((output / "metrics.json").read_text())["metrics"]
    assert metrics["cap_len"]["n"] == scored
    assert len((output / "per_caption.jsonl").read_text().splitlines()) == scored
