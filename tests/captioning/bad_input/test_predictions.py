"""Predictions that do not match references: one line and exit code 2, or counted aloud."""

import json

import pytest

from captioning.evaluate import main

REFERENCES = {"5": ["a man on a horse"], "6": ["two cats on a sofa"], "7": ["a bus"]}
EARLIER = {"metrics.json": b'{"metrics": {}}', "per_caption.jsonl": b"{}\n"}


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
def call(tmp_path, capsys, monkeypatch):
    """Return a function that scores, and gives exit code, stdout, stderr and the folder's files."""
    monkeypatch.setenv("PATH", str(tmp_path))  # without Java, whose start takes seconds
    names = {"p": tmp_path / "results.json", "r": tmp_path / "references.json"}
    output = tmp_path / "output"
    output.mkdir()
    for name, content in EARLIER.items():
        (output / name).write_bytes(content)

    def score(predictions, references):
        for path, content in zip(names.values(), (predictions, references)):
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        arguments = [names["p"], "--references", names["r"], "--output_dir", output]
        code = main([*map(str, arguments), "--metrics", "length", "diversity"])
        printed = capsys.readouterr()
        return code, printed.out, printed.err, {p.name: p.read_bytes() for p in output.iterdir()}

    score.names = names
    return score


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_scored_is_one_line_and_leaves_earlier_scores(call, case):
    predictions, message, *references = case
    code, out, err, files = call(predictions, *(references or [REFERENCES]))
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith(f"error: {message.format(**call.names)}")
    assert files == EARLIER


@pytest.mark.parametrize("kind", COUNTED)
def test_what_can_be_scored_in_part_is_counted_aloud(call, kind):
    predictions, scored, message = COUNTED[kind]
    code, out, err, files = call(predictions, REFERENCES)
    assert code == 0 and f"{scored} captions" in out
    assert err == message.format(**call.names)
    assert json.loads(files["metrics.json"])["metrics"]["cap_len"]["n"] == scored
    assert len(files["per_caption.jsonl"].splitlines()) == scored
