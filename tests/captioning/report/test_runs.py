"""Runs and people side by side, what is refused, and what a report must not pass over."""

import json

import pytest
import torch

from captioning.config import load_config, write_config
from captioning.metrics.scoring import score
from captioning.report.comparison import hold_out, read_comparison
from captioning.report.page import render
from captioning.report.runs import differing_settings, read_runs
from captioning.runtime.errors import UserError
from tests.programs import raises_line

pytestmark = pytest.mark.usefixtures("undrawn")


def score_with(run, **changes):
    config = load_config(run / "config.yaml", (), changes)
    write_config(config, run / "result" / "test" / "config.yaml")


def test_runs_are_named_by_objective_and_folder_and_their_differing_settings_listed(runs, make_run):
    read = read_runs(runs, "test")
    assert [run.label for run in read] == ["MLE", "SMILE", "MLE+SMILE 0.3:0.7"]
    assert [run.kind for run in read] == ["mle", "smile", "mixture"]
    twice = read_runs([runs[0], make_run("again"), runs[1]], "test")
    assert [run.label for run in twice] == ["MLE (one)", "MLE (again)", "SMILE"]
    nested = read_runs([make_run("a/run"), make_run("b/run")], "test")
    assert [run.label for run in nested] == ["MLE (a/run)", "MLE (b/run)"]
    score_with(runs[1], precision="bf16")
    found = differing_settings(read_runs(runs, "test"))
    assert found["precision, in scoring"] == ["fp32", "bf16", "fp32"]
    assert found.keys() == {"objective", "init_lr", "precision, in scoring"}


def test_what_is_no_run_of_the_split_is_one_line(runs, tmp_path):
    (tmp_path / "empty").mkdir()
    scores = runs[0] / "result" / "test" / "metrics.json"
    scores.write_text('{"metrics": {"CIDEr": 1.0}}')
    (runs[1] / "result" / "test.json").unlink()
    for folders, words in [
        ([tmp_path / "absent"], "no such folder"),
        ([tmp_path / "empty"], "not a run"),
        ([runs[2], runs[2]], "named twice"),
        (runs[:1], "metrics.json"),
        (runs[1:], "no captions of split test"),
    ]:
        with raises_line(UserError, words):
            read_runs(folders, "test")


def test_only_images_of_all_runs_and_of_the_data_are_compared(make_run, runs, entries, tmp_path):
    shared = [entry["image_id"] for entry in entries[:5]]
    few = make_run("few", captions=dict.fromkeys(shared, "a ball"))
    other = make_run("other", captions={"elsewhere": "a dog"})
    with raises_line(UserError, "no image of split test was captioned by all runs"):
        read_comparison([few, other])
    elsewhere = read_comparison([other])
    assert elsewhere.human is None and elsewhere.image_ids == ["elsewhere"]
    assert "none of the captioned images" in elsewhere.missing[-1]
    beside = read_comparison([*runs, few])
    assert "MLE (one) captioned 7 images that another run did not" in beside.missing[0]
    (tmp_path / "few.json").write_text(json.dumps(entries[:5]))
    score_with(runs[0], test_file=str(tmp_path / "few.json"))
    sentence = "All runs captioned {} images, and the test split has {}. The examples and the human"
    for comparison, *counts in ((beside, 5, 12), (read_comparison(runs[:1]), 12, 5)):
        assert comparison.image_ids == shared
        assert sentence.format(*counts) in comparison.missing[-1]
        assert f"on {counts[0]} images of" in render(comparison)


def test_captions_of_weights_of_elsewhere_are_named_after_the_file(make_run, tmp_path):
    run, foreign = make_run("one"), tmp_path / "blip.pth"
    torch.save({}, foreign)

    def read(checkpoint):
        record = json.dumps({"checkpoint": str(checkpoint)})
        (run / "result" / "test" / "run.json").write_text(record)
        return read_runs([run], "test")[0]

    assert read(run / "checkpoint_best.pth").label == "MLE"
    found = read(foreign)
    assert (found.label, found.kind, found.checkpoint) == ("blip.pth", "weights", foreign)
    assert found.log == [] and "not trained here" in render(read_comparison([run]))


def test_the_data_are_those_of_the_scores_and_the_same_for_all_runs(make_run, world):
    run = make_run("one", ann_root="/gone", image_root="/gone")
    score_with(run, ann_root=str(world), image_root=str(world))
    comparison = read_comparison([run])
    assert comparison.human and comparison.image_path(comparison.image_ids[0]).exists()
    with raises_line(UserError, "different data sets: image_root"):
        read_comparison([run, make_run("two", image_root="/gone")])
    split = {"train_file": "scenes_test.json", "val_file": None, "test_file": None}
    split["split"] = {"val": 0.3, "test": 0.3}
    first = make_run("three", **split, seed=1)
    assert read_comparison([first, make_run("same", **split, seed=1)])
    with pytest.raises(UserError, match=r"different data sets: split is .*\('seed', 1\)"):
        read_comparison([first, make_run("four", **split, seed=2)])


def test_a_persons_caption_is_scored_against_those_of_the_others(make_run, runs, entries):
    captions, others = hold_out({7: ["a", "b", "c"], 8: ["d", "e", "f"], 9: ["g"], 10: ["h", "i"]})
    assert captions == {7: "a", 8: "e", 9: "g", 10: "i"}  # in turn
    assert others == {7: ["b", "c"], 8: ["d", "f"], 10: ["h"]}
    # The first run lacks the facts, which another run has.
    comparison = read_comparison([make_run("no", facts_file=None, metrics=["coco"]), *runs])
    human, page = comparison.human, render(comparison)
    assert "people are simulated" in page and "A person wrote" not in page
    held_out, references = hold_out({e["image_id"]: e["caption"] for e in entries})
    expected = score(held_out, references).metrics
    assert human.captions == held_out
    for name in ("CIDEr", "Bleu_4", "cap_len", "lex_div"):
        assert human.metrics[name] == expected[name]
    assert human.metrics["wrong_facts"].value == 0  # the annotators of the world tell the truth
    assert "Bleu_1" not in human.metrics  # which no run has


def test_people_are_scored_without_asking_a_judge(make_run, monkeypatch):
    monkeypatch.setattr("captioning.files.chat.ChatServer.ask", lambda *_: pytest.fail("asked"))
    scores = {"CLAIR": {"value": 25.0}, "cap_len": {"value": 4.0}}
    judge = {"judge_url": "https://host.example/v1", "judge_model": "wise"}
    given = {"metrics": ["clair", "length"], "facts_file": None, **judge}
    comparison = read_comparison([make_run("judged", scores=scores, **given)])
    assert comparison.human.metrics.keys() == {"cap_len"} and comparison.scenes == {}


def test_people_are_scored_on_the_images_with_several_captions(make_run, entries, tmp_path):
    (tmp_path / "few.json").write_text("[]")
    run = make_run("one", test_file=str(tmp_path / "few.json"))

    def comparison(single):
        for entry in entries[:single]:
            entry["caption"] = entry["caption"][-1:]
        (tmp_path / "few.json").write_text(json.dumps(entries))
        return read_comparison([run])

    some = comparison(5)
    assert some.human.metrics["CIDEr"].n == 7
    assert "5 of the 12 images have only one" in " ".join(some.missing)
    none = comparison(12)
    assert set(none.human.metrics) == {"cap_len", "lex_div", "true_facts", "wrong_facts"}
    assert "one human caption" in " ".join(none.missing)
    assert "one reference fewer" not in render(none)
