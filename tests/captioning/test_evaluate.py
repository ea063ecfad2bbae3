"""The scoring program: what it prints, what it writes, and how it refuses."""

import json
import subprocess
import sys

import pytest

from captioning import evaluate
from captioning.errors import UserError
from captioning.evaluate import main, score, write_scores
from captioning.metrics import diversity, evaluator
from captioning.metrics.bootstrap import Estimate
from captioning.metrics.evaluator import Evaluator, Result, Scores, Settings
from captioning.metrics.registry import build_evaluators

REFERENCES = {"5": ["a man on a horse", "a rider"], "6": ["two cats on a sofa"], "7": ["a bus"]}


@pytest.fixture(autouse=True)
def no_java(monkeypatch, tmp_path):
    """Score without Java: its start takes seconds, and its tokens are tested elsewhere."""
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def files(tmp_path):
    """Return a function that writes predictions and references, and gives the arguments."""

    def write(predictions, references):
        arguments = [tmp_path / "results.json", "--references", tmp_path / "references.json"]
        arguments[0].write_text(json.dumps(predictions))
        arguments[2].write_text(json.dumps(references))
        return [str(argument) for argument in arguments]

    return write


def test_program(files, tmp_path, repository):
    arguments = files(
        [
            {"image_id": 5, "caption": "a man on a horse"},
            {"image_id": 6, "caption": "😀\u2028\ud83d"},
        ],
        REFERENCES,
    )
    done = subprocess.run(
        [sys.executable, "-m", "captioning.evaluate", *arguments, "--output_dir", "out dir"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    *table, intervals, note, skipped = done.stdout.splitlines()
    titles, values, spreads = table[:3]
    assert titles.split()[-4:] == ["BLEU-4", "METEOR", "ROUGE-L", "CIDEr"]
    assert titles.startswith("Cap. Len.  Lex. Div.  BLEU-1")
    assert values.split()[-3:-1] == ["-", "0.500"] and spreads.split()[-2:] == ["±0.500", "±2.500"]
    assert intervals == "±: half of the 95 % interval over images"
    assert note == "2 captions, tokenizer: regex (no Java)"
    assert skipped == "METEOR skipped: no Java: there is no `java` on PATH"
    assert done.stderr == (
        "warning: 1 of 3 images with references have no prediction and were not scored\n"
    )

    summary = json.loads((tmp_path / "out dir" / "metrics.json").read_text())
    assert summary["metrics"]["ROUGE_L"] == {"value": 0.5, "low": 0.0, "high": 1.0, "n": 2}
    assert summary["metrics"]["lex_div"] == {"value": 0.005, "low": None, "high": None, "n": 2}
    assert list(summary) == ["metrics", "settings", "skipped", "command", "versions"]
    assert summary["settings"]["tokenizer"] == "regex (no Java)"
    assert "1000 resamples" in summary["settings"]["intervals"]
    assert list(summary["skipped"]) == ["METEOR"]
    assert summary["command"].startswith("python -m captioning.evaluate ")
    assert summary["command"].endswith("--output_dir 'out dir'")
    assert summary["versions"]["pycocoevalcap"] and summary["versions"]["java"] is None
    lines = (tmp_path / "out dir" / "per_caption.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert first["image_id"] == 5 and first["caption"] == "a man on a horse"
    assert second["caption"] == "😀\u2028\ud83d"
    assert first["ROUGE_L"] == 1.0 and second["ROUGE_L"] == second["CIDEr"] == 0.0
    assert (first["cap_len"], second["cap_len"]) == (5, 2)
    assert len(list((tmp_path / "out dir").iterdir())) == 2


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ([], "nothing to score"),
        ([{"image_id": 5, "caption": "a"}, {"image_id": 9, "caption": "a"}], "image_id 9 has a"),
        ([{"image_id": 5, "caption": "a"}] * 2, "image_id 5 occurs twice"),
    ],
)
def test_mistakes_end_in_one_line(files, capsys, predictions, message):
    assert main(files(predictions, REFERENCES)) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ") and message in printed.err
    assert printed.err.count("\n") == 1


def test_folder_that_cannot_be_written_to_costs_no_scores(files, capsys):
    arguments = files([{"image_id": 5, "caption": "a man"}], {"5": ["a man"]})
    assert main([*arguments, "--output_dir", arguments[0]]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("Cap. Len.") and "cannot write" in printed.err


def test_score_takes_results_or_a_mapping():
    references = {5: ["a man on a horse"], 6: ["a cat"]}
    results = [{"image_id": 5, "caption": "a man"}, {"image_id": 6, "caption": "a cat"}]
    scores = score(results, references)
    assert scores == score({5: "a man", 6: "a cat"}, references)
    assert scores == score(results, {str(i): group for i, group in references.items()})
    assert scores.per_image[6]["ROUGE_L"] == 1.0
    with pytest.raises(UserError, match="nothing to score"):
        score({}, references)


def test_spice_is_asked_for_by_its_flag(files, capsys):
    arguments = files([{"image_id": 5, "caption": "a man"}], {"5": ["a man"]})
    main([*arguments, "--spice"])
    assert "SPICE skipped: no Java" in capsys.readouterr().out


def test_metrics_are_chosen_by_name(files, capsys):
    arguments = files([{"image_id": 5, "caption": "a man"}], {"5": ["a man"]})
    assert main([*arguments, "--metrics", "length"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["Cap. Len.", "     2.00"]
    assert main([*arguments, "--metrics", "length", "facts"]) == 2
    assert "facts needs facts_file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*arguments, "--metrics", "rouge"])
    assert "coco" in capsys.readouterr().err


class Broken(Evaluator):
    names = ("scene_R@1", "scene_R@5")

    def evaluate(self, captions):
        raise UserError("no scene of image 5")


class Undefined(Evaluator):
    names = ("wrong_facts",)

    def evaluate(self, captions):
        nothing = Estimate(float("nan"), None, None, 2)
        return Result({"wrong_facts": nothing}, {"wrong_facts": [None, None]}, {"scenes": 2})


def test_an_evaluator_that_fails_loses_no_other(monkeypatch):
    monkeypatch.setattr(diversity, "zip", lambda *_: 1 / 0, raising=False)
    own = [Broken(Settings()), Undefined(Settings())]
    chosen = [*own, *build_evaluators(["diversity", "length"])]
    scores = score({5: "a man", 6: "a"}, {5: ["a"], 6: ["b"]}, chosen)
    assert list(scores.metrics) == ["cap_len"] and scores.settings == {"scenes": 2}
    assert scores.per_image[5] == {"cap_len": 2, "wrong_facts": None}
    undefined = scores.skipped.pop("wrong_facts")
    assert "share" in undefined
    assert scores.skipped == {
        **dict.fromkeys(Broken.names, "no scene of image 5"),
        **dict.fromkeys(diversity.Diversity.names, "ZeroDivisionError('division by zero')"),
    }


def test_captions_are_tokenized_once(monkeypatch):
    calls = []

    def tokenize(captions):
        calls.append(captions)
        return captions, "none"

    monkeypatch.setattr(evaluator, "tokenize", tokenize)
    scores = score({5: "a man", 6: "a"}, {5: ["a"], 6: ["b"], 7: ["c"]})
    assert calls == [{5: ["a man", "a"], 6: ["a", "b"]}]
    assert scores.settings == {"tokenizer": "none"} and {"ttr", "CIDEr"} <= scores.metrics.keys()


def test_ids_of_both_kinds_are_kept_apart():
    predictions = {1: "a man", "two": "a dog", 3: "a cat and a dog", "3": ""}
    scores = score(predictions, {**{i: ["a man"] for i in predictions}, "unused": ["no"]})
    assert list(scores.per_image) == [1, "two", 3, "3"]
    assert [values["cap_len"] for values in scores.per_image.values()] == [2, 2, 5, 0]


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    scores = Scores({"CIDEr": Estimate(1.0, 1.0, 1.0, 1)}, {1: {"CIDEr": 1.0}}, {}, {})
    write_scores(tmp_path, scores, {1: "a cat"}, "first")
    before = (tmp_path / "per_caption.jsonl").read_text()

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(evaluate.os, "replace", full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        write_scores(tmp_path, scores, {1: "a dog"}, "second")
    assert (tmp_path / "per_caption.jsonl").read_text() == before
