"""Kendall's tau by its definition, and rating files as they are published."""

import json
from itertools import combinations

import numpy as np
import pytest

from captioning.data.caption_files import read_references
from captioning.files.writing import write_json
from captioning.metrics import bootstrap
from captioning.metrics.correlation import kendall_tau, tau_estimates
from captioning.metrics.diversity import Length
from captioning.metrics.ratings import RATING, read_ratings
from captioning.metrics.scene_ratings import read_runs
from captioning.runtime.errors import UserError
from captioning.scenes.facts import mark_words
from captioning.scenes.make import make_scenes, read_scenes
from tests.programs import one_error_line, raises_line, run_program


def test_tau_by_its_definition_and_its_interval():
    random = np.random.default_rng(1)
    y = random.integers(1, 5, 80).astype(float)
    x = np.round(y + random.normal(0, 2, 80), 1)
    signs = np.array(
        [(np.sign(a - c), np.sign(b - d)) for (a, b), (c, d) in combinations(zip(x, y), 2)]
    )
    surplus, untied = (signs[:, 0] * signs[:, 1]).sum(), (signs != 0).sum(0)
    levels = min(len(set(x)), len(set(y)))
    expected = [surplus / np.sqrt(untied.prod()), 2 * surplus / (80**2 * (levels - 1) / levels)]
    found = tau_estimates(x, y, np.arange(80))
    assert [each.value for each in found] == pytest.approx(expected)
    assert all(each.low < each.value < each.high and each.n == 80 for each in found)
    weights = random.integers(0, 3, 80)
    repeated = (np.repeat(values, weights) for values in (x, y, np.ones(80)))
    assert kendall_tau(x, y, weights) == pytest.approx(kendall_tau(*repeated))
    few = tau_estimates(x, y, np.arange(80) // 40)[0]  # two images
    assert few.value == found[0].value and (few.low, few.high) != (found[0].low, found[0].high)
    x[:3] = np.nan
    assert tau_estimates(x, y, np.arange(80))[0].n == 77
    assert np.isnan(tau_estimates(np.ones(80), y, np.arange(80))[1].value)


TOKENS = {"a.jpg": ["A dog .", "The dog runs ."], "b.jpg": ["A boat .", "The sea ."]}


@pytest.fixture
def files(tmp_path):
    """Return a folder of rating files, in the columns of the published ones."""
    lines = [f"{image}#{n}\t{t}" for image, texts in TOKENS.items() for n, t in enumerate(texts)]
    (tmp_path / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    expert = ["a.jpg\ta.jpg#0\t4\t4\t4", "a.jpg\tb.jpg#1\t1\t1\t2", "b.jpg\ta.jpg#1\t1\t1\t1"]
    (tmp_path / "ExpertAnnotations.txt").write_text("\n".join(expert) + "\n")
    crowd = ["a.jpg\tb.jpg#0\t0.333333\t1\t2", "b.jpg\ta.jpg#0\t0\t0\t3", "b.jpg\ta.jpg#1\t1\t3\t0"]
    (tmp_path / "CrowdFlowerAnnotations.txt").write_text("\n".join(crowd) + "\n")
    cells = [""] * 27 + ["http://host/x/a.jpg", "a dog", "a cat", "a boat", "5", "2", "1"]
    wide = [*[""] * 27, "http://host/x/b.jpg", "A boat", "a ship", "dogs", "a man", *"4321"]
    rows = [["head"] * 34, cells, wide, [""] * 34]
    (tmp_path / "8k_correctness.csv").write_text("\n".join(map(";".join, rows)) + "\n")
    write_json([{"image": n, "caption": t} for n, t in TOKENS.items()], tmp_path / "human.json")
    line = {"id": "0001", "image": "img/a.jpg", "caption": "a dog", "score": 0.75}
    both = [{**line, "references": ["dogs"]}, {**line, "id": "2", "caption": "no", "score": 0}]
    (tmp_path / "kit.jsonl").write_text("".join(json.dumps(row) + "\n" for row in both))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ExpertAnnotations.txt", [("a.jpg", "The sea .", 1), ("a.jpg", "The sea .", 1),
            ("a.jpg", "The sea .", 2), *[("b.jpg", "The dog runs .", 1)] * 3]),
        ("CrowdFlowerAnnotations.txt", [("a.jpg", "A boat .", 0.333333), ("b.jpg", "A dog .", 0),
            ("b.jpg", "The dog runs .", 1)]),
        ("8k_correctness.csv", [("a.jpg", "a dog", 5), ("a.jpg", "a cat", 2),
            ("a.jpg", "a boat", 1), ("b.jpg", "A boat", 4), ("b.jpg", "a ship", 3),
            ("b.jpg", "dogs", 2)]),
        ("kit.jsonl", [("img/a.jpg", "a dog", 0.75), ("img/a.jpg", "no", 0)]),
    ],
)  # fmt: skip
def test_ratings_are_read_as_they_are_published(files, name, expected):
    rated = read_ratings(files / name, files / "human.json")
    assert [(row.image, row.caption, row.ratings[RATING]) for row in rated] == expected
    human = {**TOKENS, "img/a.jpg": TOKENS["a.jpg"]}
    first = {"kit.jsonl": ["dogs"], "8k_correctness.csv": ["The dog runs ."]}
    assert rated[0].references == first.get(name, TOKENS["a.jpg"])
    assert rated[1].references == human[rated[1].image]


def correlate(*arguments, code=0):
    """Call the program; return the first line of each metric, as words, and the log."""
    done = run_program("captioning.metrics.correlation", *arguments)
    assert done.code == code, done.err
    lines = reversed(done.out.splitlines())
    return {line.split("  ")[0]: line.split() for line in lines}, done.err


def test_an_images_objects_are_those_of_each_of_its_captions(files):
    """chair's values, computed by hand, order the captions as the ratings do."""
    texts = {"a dog": 3, "a dog and a boat": 2, "a boat": 1}
    rows = [
        {"image": "img/a.jpg", "caption": text, "references": ["x"], "score": rating}
        for text, rating in texts.items()
    ]
    (files / "kit.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json({"img/a.jpg": ["dog"]}, files / "objects.json")
    (files / "words.txt").write_text("dog, puppy\nboat, ship\n")
    call = [files / "kit.jsonl", "--metrics", "chair"]
    call += ["--objects_file", files / "objects.json", "--synonyms", files / "words.txt"]
    rows, log = correlate(*call)
    assert rows["CHAIRi"][1] == "-1.00" and rows["Obj. Recall"][2] == "0.82" and not log
    write_json({"c.jpg": ["dog"]}, files / "objects.json")
    _, log = correlate(*call, code=2)
    assert "no image id in common" in log and "nothing was scored" in log


def test_images_that_are_missing_are_named(files):
    (files / "a.jpg").touch()
    call = (files / "ExpertAnnotations.txt", "--images", files, "--metrics", "length")
    line = f"3 of 6 rated images do not exist, the first is {files}/b.jpg"
    one_error_line(correlate(*call, code=2)[1], line)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ExpertAnnotations.txt", "a.jpg\tb.jpg#9\t1\t1\t1", "has no caption 'b.jpg#9'"),
        ("ExpertAnnotations.txt", "c.jpg\tb.jpg#1\t1\t1\t1", "image 'c.jpg' has no references"),
        ("ExpertAnnotations.txt", "a.jpg\tb.jpg#1\t1", "holds no ratings as they were published"),
        ("ExpertAnnotations.txt", "a.jpg\ta.jpg#1\t1\t1\t1", "no rating of a caption of another"),
        ("kit.jsonl", '{"image": "c.jpg", "caption": "a", "score": 1}', "image 'c.jpg' has no ref"),
        ("kit.jsonl", '{"image": "a.jpg", "caption": 1, "score": 1}', "line 1 has no caption text"),
        ("kit.jsonl", '{"image": "a.jpg"}', "expected a file of Flickr8k, Composite, or lines"),
        ("x.csv", "head\n" + ";" * 27 + "u/c.jpg;a;1", "image 'c.jpg' has no references"),
    ],
)
def test_bad_ratings_are_one_line(files, name, content, message):
    (files / name).write_text(content)
    with raises_line(UserError, message, name):
        read_ratings(files / name, files / "human.json")


def test_the_ratings_of_runs_on_scenes_are_the_marked_facts(tmp_path, monkeypatch, no_java):
    """And longer captions have more of them."""
    monkeypatch.setattr(bootstrap, "RESAMPLES", 20)
    built = []  # once, however many runs there are
    monkeypatch.setattr(Length, "prepare", lambda self: built.append(self))
    make_scenes(tmp_path / "scenes", splits={"test": 12})
    facts, human = tmp_path / "scenes/scenes.json", tmp_path / "scenes/scenes_test.json"
    references = read_references(human)
    for number in range(4):  # each run has one annotator's captions, the last of another scene
        rows = [
            {"image_id": i, "caption": references[(i + number // 3) % 12][number + 1]}
            for i in references
        ]
        (tmp_path / f"runs/run{number}/result").mkdir(parents=True)
        write_json(rows, tmp_path / f"runs/run{number}/result/test.json")
    call = [tmp_path / "runs", "--metrics", "length", "diversity", "facts"]
    call += ["--references", human, "--facts_file", facts]
    rows, _ = correlate(*call)
    assert len(built) == 1
    assert {"True Facts", "Cap. Len.", "Coverage", "Precision", "Lex. Div."} < rows.keys()
    assert rows["True Facts"][2] == "1.00" and float(rows["Cap. Len."][2]) > 0.5
    scenes = read_scenes(facts)
    for row in read_runs(tmp_path / "runs", facts, human):
        marks = [mark for _, mark in mark_words(row.caption, scenes[int(row.image)])]
        assert (row.ratings["right"] == 1) == (False not in marks)
    one_error_line(correlate(*call[:-2], code=2)[1], "need --facts_file")
    call.remove("facts")  # the metric; the file is still needed for the ratings
    assert "warning" not in correlate(*call)[1]
