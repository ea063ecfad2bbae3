"""How metrics are built, files that are none of theirs, and sums of metrics."""

import json
import math

import numpy as np
import pytest
import torch

from captioning.metrics import EVALUATORS
from captioning.metrics.base import CaptionSet, Settings, all_metrics, build_evaluators
from captioning.metrics.metric_sum import MetricSum
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load
from tests.programs import raises_line

KINDS = {name: load(entry) for name, entry in EVALUATORS.items()}
ONES = np.ones((2, 15))


def test_an_option_or_images_that_are_missing_or_impossible_are_refused():
    with raises_line(UserError, start="spice_timeout: found -1. Input should be greater than 0"):
        build_evaluators(["coco"], spice_timeout=-1)
    assert len(build_evaluators(["length", "coco", "length"])) == 2
    for name, kind in KINDS.items():
        if kind.required:
            needed = f"metrics: {name} needs {' and '.join(kind.required)}: "
            with raises_line(UserError, start=needed):
                build_evaluators(["length", name])
        if kind.needs_images:
            with raises_line(UserError, start=f"metrics: {name} needs the images: "):
                build_evaluators(["length", name], **dict.fromkeys(kind.required, "a"))


OBJECTS, QUESTIONS = "expected COCO's instances", "expected {image id: [question]}"


@pytest.mark.parametrize(
    ("evaluator", "option", "name", "content", "part"),
    [
        ("coco", "cider_df", "a.json", {"images": 5}, "no counts of n-grams"),
        ("diversity", "train_captions", "a.json", None, "no such file"),
        ("chair", "objects_file", "a.json", {"1": "dog"}, OBJECTS),
        ("chair", "objects_file", "a.json", {"1": ["hovercraft"]}, "name, not 'hovercraft'"),
        ("chair", "objects_file", "a.json", {"1": ["dog"]}, "first ones are '1' and 'x'"),
        ("chair", "synonyms", "a.txt", "words\nwithout synonyms\n", "no synonyms: expected"),
        ("checklist", "checklist", "a.jsonl", {"id": "DK001"}, QUESTIONS),
        ("checklist", "checklist", "a.json", ["A dog?"], QUESTIONS),
        ("checklist", "checklist", "a.json", {7: []}, "image '7' has no questions"),
        ("retrieval", "pool", "a.xml", "a", "is not a folder, a list of images or an .npz file"),
        ("retrieval", "pool", "a.txt", "a.txt.png", "a.txt.png: no such file"),
        ("retrieval", "pool", "a.json", [], "holds no images"),
        ("retrieval", "pool", "a.npz", {"features": ONES}, "cannot be read: 'files is not a file"),
        ("retrieval", "pool", "a.npz", {"features": ONES, "files": []}, "2 features of 0 files"),
        ("retrieval", "pool", "a.npz", {"features": ONES, "files": [1, 2]}, "of width 15, clip_m"),
        ("perplexity", "ppl_model", "a", None, "cannot be loaded by transformers"),
        ("itm", "itm_model", "a.pth", None, "a.pth does not exist"),
        ("itm", "itm_model", "a.pth", {"weight": torch.ones(2)}, "no image-text matching head"),
    ],
)
def test_another_file_is_one_line(
    evaluator, option, name, content, part, clip_folder, photos, tmp_path
):
    path, kind = tmp_path / name, KINDS[evaluator]
    (tmp_path / "objects.json").write_text('{"x": ["dog"]}')
    (tmp_path / "synonyms.txt").write_text("dog, puppy")
    if path.suffix == ".npz":
        np.savez(path, **content)
    elif path.suffix == ".pth" and content:
        torch.save(content, path)
    elif content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    given = {"judge_url": "http://127.0.0.1:9", "judge_model": "a", "clip_model": str(clip_folder)}
    given.update(objects_file=f"{tmp_path}/objects.json", synonyms=f"{tmp_path}/synonyms.txt")
    given[option] = str(path)
    settings, captions = Settings({"x": photos[0]}, cache_dir=tmp_path), {"x": ["a"]}
    with raises_line(UserError, part, name):
        options = {key: given[key] for key in kind.options if key in given}
        [built] = build_evaluators([evaluator], settings, **options)
        built.check_requirements()
        built.evaluate(CaptionSet({"x": "a"}, captions))


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("CIDEr + BLEU_4", "'BLEU_4' is no metric; did you mean Bleu_4?"),
        ("perplexity", f"'perplexity' is no metric; there are {', '.join(all_metrics())}"),
        ("CIDEr - CIDEr", "CIDEr occurs twice"),
        *((text, "write it as METRIC, -METRIC or") for text in ("CIDEr Bleu_4", "CIDEr +", "")),
    ],
)
def test_what_is_no_sum_of_metrics_is_one_line(text, start):
    with raises_line(ValueError, start=start):
        MetricSum.parse(text)
    # Any metrics make one, also PAC-S, which has a minus in its name.
    found = MetricSum.parse(" - ".join(all_metrics())).compute(dict.fromkeys(all_metrics(), 1.0))
    assert found == 2 - len(all_metrics())
    for scores in ({}, {"METEOR": math.nan}):
        assert MetricSum.parse("CIDEr + METEOR").compute({"CIDEr": 1.0, **scores}) is None
