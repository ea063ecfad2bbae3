"""Run folders, and what is refused."""

import json

import pytest

from captioning.metrics.bootstrap import Estimate
from captioning.report.comparison import compare
from captioning.report.runs import plain_command, read_runs
from captioning.runtime.errors import UserError


def test_labels_and_kinds(runs, make_run):
    read = read_runs(runs, "test")
    assert [run.label for run in read] == ["MLE", "SMILE", "MLE+SMILE 0.3:0.7"]
    assert [run.kind for run in read] == ["mle", "smile", "mixture"]
    twice = read_runs([runs[0], make_run("again"), runs[1]], "test")
    assert [run.label for run in twice] == ["MLE (one)", "MLE (again)", "SMILE"]
    nested = read_runs([make_run("a/run"), make_run("b/run")], "test")
    assert [run.label for run in nested] == ["MLE (a/run)", "MLE (b/run)"]


def test_what_a_run_says(runs):
    run = read_runs(runs, "test")[0]
    assert run.metrics["CIDEr"] == Estimate(1.2345, 1.1, 1.35, 12)
    assert run.metrics["Bleu_4"] == Estimate(0.321, None, None, 12)
    assert len(run.log) == 22  # the unfinished line is passed over
    assert run.checkpoint == runs[0] / "checkpoint_best.pth"


def test_weights_that_were_not_trained_here(make_run):
    folder = make_run("blip")
    (folder / "config.yaml").rename(folder / "result" / "test" / "config.yaml")
    run = read_runs([folder], "test")[0]
    assert (run.label, run.kind, run.is_trained) == ("blip", "weights", False)


@pytest.mark.parametrize(
    "command, plain",
    [
        ("/a/python3.11 /b/captioning/train.py --seed 1", "python -m captioning.train --seed 1"),
        ("/a/python /b/captioning/report/__main__.py x", "python -m captioning.report x"),
        ("/a/python 'my own.py'", "/a/python 'my own.py'"),
        ("bash run.sh", "bash run.sh"),
    ],
)
def test_plain_command(command, plain):
    assert plain_command({"command": command}) == plain


def test_refusals(runs, tmp_path):
    (tmp_path / "empty").mkdir()
    (runs[1] / "result" / "test.json").unlink()
    for folders, words in [
        ([], "no run"),
        ([tmp_path / "absent"], "no such folder"),
        ([tmp_path / "empty"], "not a run"),
        ([runs[1]], "no captions of split test"),
        ([runs[0], runs[0]], "named twice"),
    ]:
        with pytest.raises(UserError, match=words) as caught:
            read_runs(folders, "test")
        assert "\n" not in str(caught.value)


def test_runs_of_other_images(runs):
    path = runs[1] / "result" / "test.json"
    results = json.loads(path.read_text())
    path.write_text(json.dumps(results[:5]))
    comparison = compare(runs)
    assert comparison.image_ids == [result["image_id"] for result in results[:5]]
    assert any("MLE captioned 7 images" in sentence for sentence in comparison.missing)
    path.write_text(json.dumps([{"image_id": "elsewhere", "caption": "a dog"}]))
    with pytest.raises(UserError, match="no image of split test was captioned by all runs"):
        compare(runs)


def test_captions_of_another_data_set(make_run):
    comparison = compare([make_run("one", captions={10**6: "a dog"})])
    assert comparison.human is None and comparison.image_ids == [10**6]
    assert "none of the captioned images" in comparison.missing[0]
