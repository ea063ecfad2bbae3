"""capevalkit's files are read, and our script for it writes the scores of captioning.evaluate."""

import json

from captioning import capevalkit, evaluate
from captioning.data.caption_files import read_predictions, read_references

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
    arguments = ["--metric", "coco", "--predictions", files[0], "--references", files[1]]
    assert capevalkit.main([*arguments, "--output", str(tmp_path / "scores.json")]) == 0
    found = json.loads((tmp_path / "scores.json").read_text())
    arguments = [files[0], "--references", files[1], "--metrics", "coco"]
    assert evaluate.main([*arguments, "--output_dir", str(tmp_path)]) == 0
    summary = json.loads((tmp_path / "metrics.json").read_text())["metrics"]
    lines = [json.loads(line) for line in (tmp_path / "per_caption.jsonl").read_text().splitlines()]
    assert found.keys() == summary.keys() >= {"ROUGE_L", "CIDEr"}
    for name in ("ROUGE_L", "CIDEr"):
        assert found[name]["score"] == summary[name]["value"]
        assert found[name]["per_item"] == {line["image_id"]: line[name] for line in lines}
