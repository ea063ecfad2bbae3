"""The measuring itself: turns, ratios, memory, contenders that fail, and what is written."""

import importlib
import json
import os

import pytest

from benchmarks import TOPICS, __main__
from benchmarks.measure import alternate, compare, peak_memory, row
from benchmarks.topic import parse, run


def test_contenders_take_turns():
    calls = []
    contenders = {name: lambda name=name: calls.append(name) for name in ("ours", "theirs")}
    seconds = alternate(contenders, rounds=3)
    assert calls == ["ours", "theirs"] * 3
    assert {name: len(times) for name, times in seconds.items()} == {"ours": 3, "theirs": 3}


def test_a_row_holds_ratios_of_medians_and_of_rounds():
    seconds = {"ours": [1.0, 2.0, 4.0], "theirs": [3.0, 4.0, 4.0]}
    entry = row(seconds, "theirs", {"ours": 10, "theirs": 40}, (6, "captions"), size=2)
    assert (entry["peer"], entry["size"]) == ("theirs", 2)
    ours, theirs = entry["contenders"]["ours"], entry["contenders"]["theirs"]
    assert (ours["median"], ours["ratio"], ours["spread"]) == (2.0, 2.0, [1.0, 3.0])
    assert (ours["peak_bytes"], ours["memory_ratio"], ours["rate"]) == (10, 0.25, 3.0)
    assert (theirs["ratio"], theirs["spread"]) == (1.0, [1.0, 1.0])
    assert theirs["times"] == [3.0, 4.0, 4.0]


def test_a_contender_that_fails_costs_itself_alone(monkeypatch):
    def fails():
        raise ValueError("no\nmemory")

    seconds = {"ours": [2.0], "slow": [4.0], "fast": [3.0]}
    monkeypatch.setattr("benchmarks.measure.alternate", lambda works, rounds: seconds)
    works = {"ours": int, "slow": int, "fast": int, "broken": fails}
    memory = {"ours": 30, "slow": 10, "fast": 20, "broken": 5}
    entry = compare(works, ["slow", "broken", "fast"], 1, memory=memory, outputs=15)
    assert entry["failed"] == {"broken": "ValueError: no memory"}
    assert entry["peer"] == "fast" and set(entry["contenders"]) == set(seconds)
    assert [each["peak_bytes"] for each in entry["contenders"].values()] == [15, 0, 5]
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
    """Return a module that a fresh process can import."""
    (tmp_path / "works_to_measure.py").write_text(WORKS)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("works_to_measure")


@pytest.mark.parametrize(("before", "during"), [(1, 100), (200, 100)])
def test_peak_memory_is_that_of_the_call(works, before, during):
    """Not that held or freed before it."""
    growth = peak_memory(works.allocate, before, during) / 2**20
    assert during <= growth < during + 40


def test_a_child_that_fails_is_an_error(works):
    with pytest.raises(ValueError, match="on purpose"):
        peak_memory(works.fail)
    with pytest.raises(RuntimeError, match="terminated abruptly"):
        peak_memory(works.die)


def test_rows_are_printed_and_kept_as_they_are_measured(tmp_path, capsys):
    def fails():
        raise ValueError("on purpose")

    def interrupted():
        raise KeyboardInterrupt

    entry = row({"ours": [0.5], "theirs": [1.0]}, "theirs", items=(3, "images"), notes=["so"])
    options = parse(["--quick", "--output", str(tmp_path / "new")], "test", rounds=7)
    cases = {"step": lambda: entry, "broken": fails, "stopped": interrupted}
    with pytest.raises(KeyboardInterrupt):
        run("topic", cases, options)
    content = json.loads((tmp_path / "new" / "topic.json").read_text())
    assert content["planned"] == list(cases) and content["quick"] and content["rounds"] == 1
    assert content["rows"][0] == {"name": "step", **entry} and len(content["rows"]) == 2
    assert content["rows"][1] == {"name": "broken", "error": "ValueError: on purpose"}
    assert content["machine"]["torch"] != "none"
    printed = capsys.readouterr().out.splitlines()
    assert printed[2] == "step"
    assert printed[4].split() == ["ours", "500.0", "6.00", "images", "2.00", "2.00-2.00"]
    assert printed[5].split() == ["theirs", "1000.0", "3.00", "images", "1.00", "1.00-1.00"]
    assert printed[6].strip() == "so"
    assert printed[8:] == ["broken", "  FAILED: ValueError: on purpose"]
    assert [run("topic", {"a": case}, options) for case in (fails, lambda: entry)] == [1, 0]


def test_the_file_of_a_topic_is_replaced_as_a_whole(tmp_path):
    """A part that is killed while it writes leaves the file of the row before."""
    options = parse(["--quick", "--output", str(tmp_path)], "test", rounds=1)
    entry = row({"ours": [0.5]}, "ours")

    def second():
        os.link(tmp_path / "topic.json", tmp_path / "kept")
        return entry

    run("topic", {"first": lambda: entry, "second": second}, options)
    assert len(json.loads((tmp_path / "kept").read_text())["rows"]) == 1


def test_rounds_are_the_users_where_given():
    assert parse([], "test", rounds=7).rounds == 7
    assert parse(["--rounds", "2", "--quick"], "test", rounds=7).rounds == 2


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
