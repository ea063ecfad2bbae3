"""capevalkit's files are read, and our script for it writes the scores of captioning.evaluate."""

import json

from captioning.data.caption_files import read_predictions, read_references
from tests.programs import run_program

CAPTIONS = {"007": "a red ring on the sand", "b": "two dogs in the snow"}
REFERENCES = {"007": ["a ring on the sand", "a large red ring"], "b": ["two brown dogs", "dogs"]}


def test_its_files_are_read_and_scored(tmp_path, no_java):
    rows = [{"id": i, "caption": text, "image": f"{i}.png"} for i, text in CAPTIONS.items()]
    lists = [{"id": i, "references": texts} for i, texts in REFERENCES.items()]
    files = [str(tmp_path / name) for name in ("predictions.jsonl", "references.jsonl")]
    for file, lines in zip(files, (rows, lists)):
        with open(file, "w") as opened:
            opened.writelines(json.dumps(line) + "\n" for line in lines)
    assert read_predictions(files[0]) == CAPTIONS and read_references(files[1]) == REFERENCES
    given = ["--metric", "coco", "--predictions", files[0], "--output", tmp_path / "scores.json"]
    assert run_program("captioning.capevalkit", *given, "--references", files[1]).code == 0
    found = json.loads((tmp_path / "scores.json").read_text())
    given = [files[0], "--references", files[1], "--metrics", "coco", "--output_dir", tmp_path]
    assert run_program("captioning.evaluate", *given).code == 0
    summary = json.loads((tmp_path / "metrics.json").read_text())["metrics"]
    lines = [json.loads(line) for line in (tmp_path / "per_caption.jsonl").read_text().splitlines()]
    assert found.keys() == summary.keys() >= {"ROUGE_L", "CIDEr"}
    for name in ("ROUGE_L", "CIDEr"):
        assert found[name]["score"] == summary[name]["value"]
        assert found[name]["per_item"] == {line["image_id"]: line[name] for line in lines}
