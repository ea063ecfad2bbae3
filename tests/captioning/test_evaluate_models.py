"""The metrics that run models, through the program."""

import json

import pytest
from PIL import Image

from captioning.evaluate import main

CAPTIONS = ["the cat", "a dog and the ball", "", "the dog's cat and", "a ball"]
METRICS = ["clipscore", "retrieval", "perplexity", "itm"]  # that run models


@pytest.fixture
def arguments(photos, clip_folder, gpt2_folder, itm_checkpoint, tmp_path):
    """Return the arguments that score five captions, of four photos and one more."""
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (30, 30), "red").save(folder / "COCO_val2014_000000000004.png")
    for number, photo in enumerate(photos):
        photo.rename(folder / f"COCO_val2014_{number:012d}.png")
    predictions = [{"image_id": i, "caption": caption} for i, caption in enumerate(CAPTIONS)]
    (tmp_path / "results.json").write_text(json.dumps(predictions))
    references = {str(i): ["the cat", caption] for i, caption in enumerate(CAPTIONS)}
    (tmp_path / "references.json").write_text(json.dumps(references))
    return [
        str(tmp_path / "results.json"),
        *("--references", str(tmp_path / "references.json")),
        *("--images", str(folder)),
        *("--clip_model", str(clip_folder), "--ppl_model", str(gpt2_folder)),
        *("--itm_model", str(itm_checkpoint)),
        *("--cache_dir", str(tmp_path / "cache"), "--device", "cpu"),
        *("--batch_size", "2"),  # several batches
        *("--metrics", "length", *METRICS),
    ]


def test_all_columns_in_one_command(arguments, tmp_path, capsys):
    assert main([*arguments, "--output_dir", str(tmp_path / "out")]) == 0
    table = capsys.readouterr().out.splitlines()
    titles = [line.split("  ")[0] for line in table[:5]]
    assert titles == ["Cap. Len.", "R@1", "R@5", "CLIPScore", "PPL"]
    scores = json.loads((tmp_path / "out" / "metrics.json").read_text())
    clip = ["CLIPScore", "RefCLIPScore", "CLIPScore_sentences"]
    names = ["cap_len", *clip, "R@1", "R@5", "R@10", "median_rank", "PPL", "ITM", "ITC"]
    assert list(scores["metrics"]) == names and scores["skipped"] == {}
    assert scores["metrics"]["R@5"]["value"] == 100 and scores["metrics"]["PPL"]["n"] == 4
    assert scores["settings"]["pool"] == "5 images (the captions' own)"
    assert scores["settings"]["ppl_empty"] == 1 and scores["settings"]["itm_truncated"] == 0
    assert scores["versions"]["torch"] and scores["versions"]["transformers"]
    lines = (tmp_path / "out" / "per_caption.jsonl").read_text().splitlines()
    third = json.loads(lines[2])
    assert third["PPL"] is None and 1 <= third["rank"] <= 5
