"""What a report must not pass over: other weights, other data, part of a split, broken files."""

import json
from pathlib import Path

import pytest
import torch

from captioning.config import load_config, write_config
from captioning.report.__main__ import default_output
from captioning.report.comparison import compare
from captioning.report.page import render
from captioning.report.runs import differing_settings, read_runs
from captioning.runtime.errors import UserError


def record(run, **values):
    (run / "result" / "test" / "run.json").write_text(json.dumps(values))


def score_with(run, **changes):
    config = load_config(run / "config.yaml", (), changes)
    write_config(config, run / "result" / "test" / "config.yaml")


def test_foreign_weights(make_run, tmp_path):
    run = make_run("one")
    record(run, checkpoint=str(run / "checkpoint_best.pth"))
    assert read_runs([run], "test")[0].label == "MLE"
    foreign = tmp_path / "blip.pth"
    torch.save({}, foreign)
    record(run, checkpoint=str(foreign))
    read = read_runs([run], "test")[0]
    assert (read.label, read.kind, read.checkpoint) == ("blip.pth", "weights", foreign)
    assert read.log == [] and "not trained here" in render(compare([run]))


def test_data_of_the_scores(make_run, world):
    run = make_run("one", ann_root="/gone", image_root="/gone")
    score_with(run, ann_root=str(world), image_root=str(world))
    comparison = compare([run])
    assert comparison.human and comparison.image_path(comparison.image_ids[0]).exists()
    with pytest.raises(UserError, match="different data sets: image_root") as caught:
        compare([run, make_run("two", image_root="/gone")])
    assert "\n" not in str(caught.value)


def test_parts_of_one_file_by_two_seeds_are_other_data(make_run):
    split = {
        "train_file": "scenes_test.json",
        "test_file": None,
        "split": {"val": 0.3, "test": 0.3},
    }
    run = make_run("one", **split, seed=1)
    assert compare([run, make_run("same", **split, seed=1)])
    with pytest.raises(UserError, match=r"different data sets: split is .*\('seed', 1\)"):
        compare([run, make_run("two", **split, seed=2)])


def test_settings_of_scoring(runs):
    score_with(runs[1], precision="bf16")
    assert differing_settings(read_runs(runs, "test"))["precision, in scoring"] == [
        "fp32",
        "bf16",
        "fp32",
    ]


def test_facts_of_any_run(make_run):
    runs = [make_run("one", facts_file=None, metrics=["coco"]), make_run("two", "smile")]
    comparison = compare(runs)
    assert "true_facts" in comparison.human.metrics and comparison.scenes
    page = render(comparison)
    assert "people are simulated" in page and "A person wrote" not in page


@pytest.mark.parametrize("part", ["captions", "annotations"])
def test_part_of_the_split(make_run, world, tmp_path, part):
    entries = json.loads((world / "scenes_test.json").read_text())
    (tmp_path / "few.json").write_text(json.dumps(entries[:5]))
    said = {entry["image_id"]: "a ball" for entry in entries[:7]}
    run = make_run("one", captions=said if part == "captions" else None)
    if part == "annotations":
        score_with(run, test_file=str(tmp_path / "few.json"))
    comparison = compare([run])
    count, sentence = {
        "captions": (7, "Only 7 of the split's 12 images"),
        "annotations": (12, "only 5 of the 12 captioned images"),
    }[part]
    assert any(sentence in each for each in comparison.missing)
    assert f"on {count} captioned images" in render(comparison)


@pytest.mark.parametrize("content", ["[]", '{"metrics": {"CIDEr": 1.0}}', '{"metrics": []}'])
def test_other_shapes(make_run, content):
    run = make_run("one")
    (run / "result" / "test" / "metrics.json").write_text(content)
    with pytest.raises(UserError, match=r"metrics\.json"):
        read_runs([run], "test")


def test_lines_that_are_no_events(make_run):
    run = make_run("one")
    (run / "log.jsonl").write_text('[]\n3\n{"event": "val"}\n')
    assert len(read_runs([run], "test")[0].log) == 1


def test_runs_far_apart():
    assert default_output([Path("/a/one"), Path("/b/two")]) == Path("report.html")
