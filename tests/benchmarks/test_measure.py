"""The measuring itself: turns, ratios, memory, contenders that fail, and what is written."""

import importlib
import json
import os

import pytest

from benchmarks import TOPICS, __main__, measure
from benchmarks.measure import compare, peak_memory
from benchmarks.topic import parse_options, run_topic


def test_contenders_take_turns_after_a_warm_up():
    calls = []
    works = {name: lambda name=name: calls.append(name) for name in ("ours", "theirs")}
    row = compare(works, ["theirs"], rounds=3)
    assert calls == ["ours", "theirs"] * 4
    assert [len(entry["times"]) for entry in row["contenders"].values()] == [3, 3]


@pytest.fixture
def seconds(monkeypatch):
    """Times to measure, by the work."""
    times = {int: [1.0, 2.0, 4.0], str: [3.0, 4.0, 4.0], list: [9.0, 9.0, 9.0]}
    queues = {work: iter(of_work) for work, of_work in times.items()}
    monkeypatch.setattr(measure, "measure_seconds", lambda work: next(queues[work]))


def test_a_row_holds_ratios_of_medians_and_of_rounds(seconds):
    row = compare({"ours": int, "theirs": str}, ["theirs"], 3, (6, "captions"), size=2)
    assert (row["peer"], row["size"]) == ("theirs", 2)
    ours, theirs = row["contenders"]["ours"], row["contenders"]["theirs"]
    assert (ours["median"], ours["ratio"], ours["spread"]) == (2.0, 2.0, [1.0, 3.0])
    assert (ours["rate"], ours["unit"]) == (3.0, "captions")
    assert (theirs["ratio"], theirs["spread"]) == (1.0, [1.0, 1.0])
    assert theirs["times"] == [3.0, 4.0, 4.0]


def test_a_contender_that_fails_costs_itself_alone(seconds, monkeypatch):
    def fails():
        raise ValueError("no\nmemory")

    memory = {"ours": 30, "slow": 10, "fast": 20}
    monkeypatch.setattr(measure, "peak_memory", lambda build, who, size: memory[who] * size)
    works = {"ours": int, "broken": fails, "slow": list, "fast": str}
    row = compare(works, ["slow", "broken", "fast"], 3, builder=(None, 2), outputs=30)
    assert row["failed"] == {"broken": "ValueError: no memory"}
    assert row["peer"] == "fast" and set(row["contenders"]) == set(memory)
    assert [each["peak_bytes"] for each in row["contenders"].values()] == [30, 0, 10]
    with pytest.raises(RuntimeError, match="no contender ran"):
        compare({"broken": fails}, [], 1)


WORKS = """
import os

import torch

MEBIBYTE = 2**20


def allocate(before, during):
    held = torch.ones(before, MEBIBYTE, dtype=torch.uint8)
    held.clone()
    return lambda: held.max() + torch.ones(during, MEBIBYTE, dtype=torch.uint8).max()


def fail():
    raise ValueError("on purpose")


def die():
    os._exit(1)
"""


@pytest.fixture
def works(tmp_path, monkeypatch):
    """Return a module that a new process can import."""
    (tmp_path / "works_to_measure.py").write_text(WORKS)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("works_to_measure")


def test_peak_memory_is_that_of_the_call(works):
    """Not that held or freed before it. A work that fails is an error."""
    for before, during in ((1, 100), (200, 100)):
        growth = peak_memory(works.allocate, before, during) / 2**20
        assert during <= growth < during + 40
    with pytest.raises(ValueError, match="on purpose"):
        peak_memory(works.fail)
    with pytest.raises(RuntimeError, match="terminated abruptly"):
        peak_memory(works.die)


def test_rows_are_printed_and_kept_as_they_are_measured(seconds, tmp_path, capsys):
    """A program that is killed while it writes leaves the file with the rows before."""

    def fails():
        os.link(tmp_path / "new" / "topic.json", tmp_path / "kept")
        raise ValueError("on purpose")

    def interrupted():
        raise KeyboardInterrupt

    row = compare({"ours": int, "theirs": str}, ["theirs"], 3, (3, "images"), notes=["so"])
    options = parse_options(["--quick", "--output", str(tmp_path / "new")], "test", rounds=7)
    cases = {"step": lambda: row, "broken": fails, "stopped": interrupted}
    with pytest.raises(KeyboardInterrupt):
        run_topic("topic", cases, options)
    content = json.loads((tmp_path / "new" / "topic.json").read_text())
    assert content["planned"] == list(cases) and content["quick"] and content["rounds"] == 1
    assert content["rows"] == [
        {"name": "step", **row},
        {"name": "broken", "error": "ValueError: on purpose"},
    ]
    assert len(json.loads((tmp_path / "kept").read_text())["rows"]) == 1
    assert content["machine"]["torch"] and content["machine"]["cores"]
    printed = capsys.readouterr().out.splitlines()
    assert printed[2] == "step"
    assert printed[4].split() == ["ours", "2000.0", "2.00", "1.00-3.00", "1.50", "images"]
    assert printed[5].split() == ["theirs", "4000.0", "1.00", "1.00-1.00", "0.75", "images"]
    assert printed[6].strip() == "so"
    assert printed[8:] == ["broken", "  FAILED: ValueError: on purpose"]
    assert run_topic("topic", {"step": lambda: row}, options) == 0
    (tmp_path / "kept").unlink()
    assert run_topic("topic", {"step": lambda: row, "broken": fails}, options) == 1


def test_rounds_are_the_users_where_given():
    assert parse_options([], "test", rounds=7).rounds == 7
    assert parse_options(["--rounds", "2", "--quick"], "test", rounds=7).rounds == 2


def test_topics_run_in_turn_and_one_that_fails_counts(monkeypatch):
    ran = []

    class Result:
        returncode = 1

    monkeypatch.setattr(__main__.subprocess, "run", lambda c: ran.append(c[2:]) or Result())
    assert __main__.main(["--quick"]) == 1
    assert ran == [[f"benchmarks.{topic}", "--quick"] for topic in TOPICS]
    Result.returncode, ran[:] = 0, []
    assert __main__.main(["training"]) == 0
    assert ran == [["benchmarks.training"]]
    with pytest.raises(SystemExit):
        __main__.main(["speed"])
