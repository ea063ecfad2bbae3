"""The scoring program: what it prints, what it writes, and how it refuses."""

import json
import subprocess
import sys

import pytest

from captioning import evaluate
from captioning.errors import UserError
from captioning.evaluate import format_table, main, score, write_scores
from captioning.metrics.coco import Scores

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
    header, values, note, skipped = done.stdout.splitlines()
    columns = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr"]
    assert header.split() == columns and len(values.split()) == 7 and values.split()[4] == "-"
    assert note == "2 captions, tokenizer: regex (no Java)"
    assert skipped == "METEOR skipped: no Java: there is no `java` on PATH"
    assert done.stderr == (
        "warning: 1 of 3 images with references have no prediction and were not scored\n"
    )

    summary = json.loads((tmp_path / "out dir" / "metrics.json").read_text())
    assert summary["metrics"]["ROUGE_L"] == {"value": 0.5, "n": 2}
    assert list(summary) == ["metrics", "tokenizer", "skipped", "command", "versions"]
    assert list(summary["skipped"]) == ["METEOR"]
    assert summary["command"].startswith("python -m captioning.evaluate ")
    assert summary["command"].endswith("--output_dir 'out dir'")
    assert summary["versions"]["pycocoevalcap"] and summary["versions"]["java"] is None
    lines = (tmp_path / "out dir" / "per_caption.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert first["image_id"] == 5 and first["caption"] == "a man on a horse"
    assert second["caption"] == "😀\u2028\ud83d"
    assert first["ROUGE_L"] == 1.0 and second["ROUGE_L"] == second["CIDEr"] == 0.0
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
    assert printed.out.startswith("BLEU-1") and "cannot write" in printed.err


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


def test_table_is_in_the_published_order_and_aligned():
    metrics = {"SPICE": 0.1333, "CIDEr": 12.5, "METEOR": 0.1954, "Bleu_1": 0.5794}
    scores = Scores(metrics, {1: {}}, "PTBTokenizer", {"ROUGE_L": "it broke"})
    assert format_table(scores) == (
        "BLEU-1  METEOR  ROUGE-L   CIDEr  SPICE\n"
        " 0.579   0.195        -  12.500  0.133\n"
        "1 captions, tokenizer: PTBTokenizer\n"
        "ROUGE-L skipped: it broke"
    )


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    scores = Scores({"CIDEr": 1.0}, {1: {"CIDEr": 1.0}}, "PTBTokenizer", {})
    write_scores(tmp_path, scores, {1: "a cat"}, "first")
    before = (tmp_path / "per_caption.jsonl").read_text()

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(evaluate.os, "replace", full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        write_scores(tmp_path, scores, {1: "a dog"}, "second")
    assert (tmp_path / "per_caption.jsonl").read_text() == before
