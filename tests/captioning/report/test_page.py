"""The page: what it says, what it leaves out, and that it needs nothing beside it."""

import html
import json
import re

import pytest

from captioning.report.__main__ import default_output
from captioning.report.comparison import read_comparison
from captioning.report.page import render, write_report
from tests.programs import refused, run_program


def text_of(page):
    page = re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL)
    page = re.sub(r"<[^>]+>", " ", page).replace("\u200b", "")
    return " ".join(html.unescape(page).split())


def test_a_report_is_one_file_with_what_each_run_is_and_says(runs, tmp_path, monkeypatch):
    marks = [("a", None), ("red", True), ("<dog>", False)]
    monkeypatch.setattr("captioning.report.page.mark_words", lambda caption, scene: marks)
    path = tmp_path / "out" / "page.html"
    write_report(read_comparison(runs), path, "These are <quick> numbers.")
    page = path.read_text(encoding="utf-8")
    text = text_of(page)
    assert "These are <quick> numbers." in text and "&lt;quick&gt;" in page
    # Length, true facts, wrong facts, distinct words, CIDEr, BLEU-4, as in metrics.json.
    numbers = "7.5 7.0-8.0 4.25 4.00-4.50 12.5 10.0-15.0 42 1.234 1.100-1.350 0.321"
    for label in ("MLE", "SMILE", "MLE+SMILE 0.3:0.7"):
        assert f"{label} {numbers}" in text
    other = text.partition("Other scores ROUGE-L ")[2]
    assert "MLE 0.500 SMILE 0.500" in other and "CIDEr" not in other
    assert "wrong; lower is better" in text and "caption, on average True facts" in text
    assert text.count("Humans") > 8  # the table, the legends and eight images
    assert page.count("<img ") == 9 and page.count("<svg role") == 5
    assert "init_lr 0.001 0.001 0.0003" in text
    assert "python -m captioning.train --config three.yaml" in text
    assert "torch 2.8.0" in text and "timm" not in text
    assert 'a <span class="true">red</span> <span class="wrong">&lt;dog&gt;</span></dd>' in page
    # Nothing is loaded.
    assert not re.search(r"<(script|link|iframe|object|base)\b|@import", page)
    sources = re.findall(r'\b(?:src|href|srcset|poster|data)="([^"]*)"', page)
    assert sources and all(source.startswith(("data:", "#")) for source in sources)
    assert all(match.startswith("url(#") for match in re.findall(r"url\([^)]*", page))
    assert len(page) < 1_000_000


@pytest.mark.usefixtures("undrawn")
def test_each_part_of_the_page_or_that_it_is_missing_is_told(runs, make_run, tmp_path):
    epochs = [{"epoch": e, "value": v, "scores": {"CIDEr": v}} for e, v in enumerate((0.167, 0.1))]
    record = {"select": "CIDEr", "epoch": 0, "epochs": epochs}
    (runs[0] / "selected.json").write_text(json.dumps(record))
    text = text_of(render(read_comparison(runs)))
    assert f"selected: epoch 1, by CIDEr, kept as {runs[0] / 'checkpoint_best.pth'}" in text
    assert "For SMILE, MLE+SMILE 0.3:0.7 there is no record of how the scored epoch" in text
    assert re.search(r"The whole caption costs \d+\.\d\d nats under MLE", text)
    assert "MLE charges" in text and "first_token_mle" in text
    assert "CIDEr weights words by how rare they are in the references of these" in text
    for run in runs:
        (run / "checkpoint_best.pth").unlink()
    scores = {"metrics": {}, "skipped": {"METEOR": "no Java", "SPICE": "no Java"}}
    (runs[1] / "result" / "test" / "metrics.json").write_text(json.dumps(scores))
    text = text_of(render(read_comparison(runs)))
    assert "not shown: no run has its best checkpoint in its folder." in text
    assert "SMILE: METEOR, SPICE skipped: no Java." in text and "SMILE - -" in text
    run = make_run("four", scores={}, log=False, ann_root=str(tmp_path / "gone"), facts_file=None)
    (run / "run.json").unlink()
    page = render(read_comparison([run]))
    text = text_of(page)
    for sentence in (
        "The data set could not be read, so there are no human captions",
        "MLE has no scores of this split.",
        "No run has scores of this split.",
        "There is no figure of accuracy against descriptiveness",
        "There is no record of the training of MLE.",
        "The costs of a caption's words are not shown: there are no human captions.",
        "Its commands are not recorded.",
    ):
        assert sentence in text
    assert text.count("cannot be read") == 8
    assert "Humans" not in text and 'class="wrong"' not in page


@pytest.mark.usefixtures("undrawn")
def test_the_report_is_beside_the_runs_or_where_it_is_told(runs, tmp_path, monkeypatch):
    done = run_program("captioning.report", *runs)
    assert done.code == 0 and "1.234 (1.100-1.350)" in done.out and "Humans" in done.out
    assert (runs[0].parent / "report.html").exists()
    assert default_output([runs[0]]) == runs[0] / "report.html"
    command = ("captioning.report", runs[0], "--output", tmp_path / "page.html")
    assert run_program(*command).code == 0 and (tmp_path / "page.html").exists()
    refused(*command, "--split", "val", part="one: no captions of split val")
    monkeypatch.setattr("captioning.report.comparison.score", lambda *_: 1 / 0)
    refused(*command[:-1], "/proc/none/page.html", part="/proc/none")
    refused("captioning.report", tmp_path / "absent", part="no such folder")
    assert not (tmp_path / "absent").exists()
