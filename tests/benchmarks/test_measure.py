"""The measuring itself: turns, ratios, memory, and what is written."""

import importlib
import json

import pytest
import torch

from benchmarks import TOPICS, __main__
from benchmarks.measure import alternate, parse, peak_memory, report, row


def test_contenders_take_turns_and_the_warm_up_does_not_count():
    calls = []
    contenders = {name: lambda name=name: calls.append(name) for name in ("ours", "theirs")}
    seconds = alternate(contenders, rounds=3, warmup=1)
    assert calls == ["ours", "theirs"] * 4
    assert {name: len(times) for name, times in seconds.items()} == {"ours": 3, "theirs": 3}


def test_a_row_holds_ratios_of_medians_and_of_rounds():
    seconds = {"ours": [1.0, 2.0, 4.0], "theirs": [3.0, 4.0, 4.0]}
    entry = row("step", seconds, "theirs", {"ours": 10, "theirs": 40}, (6, "captions"), size=2)
    assert (entry["name"], entry["peer"], entry["size"]) == ("step", "theirs", 2)
    ours, theirs = entry["contenders"]["ours"], entry["contenders"]["theirs"]
    assert (ours["median"], ours["ratio"], ours["spread"]) == (2.0, 2.0, [1.0, 3.0])
    assert (ours["peak_bytes"], ours["memory_ratio"], ours["rate"]) == (10, 0.25, 3.0)
    assert (theirs["ratio"], theirs["spread"], theirs["times"]) == (
        1.0,
        [1.0, 1.0],
        [3.0, 4.0, 4.0],
    )


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
def test_peak_memory_is_what_the_call_alone_needs(works, before, during):
    """Not what was held or freed before it."""
    growth = peak_memory(works.allocate, before, during) / 2**20
    assert during <= growth < during + 40


def test_a_child_that_fails_is_an_error(works):
    with pytest.raises(ValueError, match="on purpose"):
        peak_memory(works.fail)
    with pytest.raises(RuntimeError, match="terminated abruptly"):
        peak_memory(works.die)


def test_the_report_is_written_and_printed(tmp_path, capsys):
    arguments = parse(["--quick", "--output", str(tmp_path / "new")], "test", rounds=7)
    assert arguments.rounds == 1
    entry = row("step", {"ours": [0.5], "theirs": [1.0]}, "theirs", items=(3, "images"), note="so")
    content = json.loads(report("topic", [entry], arguments).read_text())
    assert content["rows"] == [entry]
    assert content["quick"] and content["machine"]["threads"] == torch.get_num_threads()
    printed = capsys.readouterr().out.splitlines()
    assert printed[2] == "step"
    assert printed[4].split() == ["ours", "500.0", "6.00", "images", "2.00", "2.00-2.00"]
    assert printed[5].split() == ["theirs", "1000.0", "3.00", "images", "1.00", "1.00-1.00"]
    assert printed[6].strip() == "so"


def test_rows_are_kept_as_they_are_measured(tmp_path):
    def measure():
        yield row("first", {"ours": [0.5]}, "ours")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report("topic", measure(), parse(["--output", str(tmp_path)], "test", rounds=1))
    assert [row["name"] for row in json.loads((tmp_path / "topic.json").read_text())["rows"]] == [
        "first"
    ]


def test_rounds_are_the_users_where_given():
    assert parse([], "test", rounds=7).rounds == 7
    assert parse(["--rounds", "2", "--quick"], "test", rounds=7).rounds == 2


def test_topics_run_in_turn_and_one_that_fails_is_told(monkeypatch):
    ran = []

    class Result:
        returncode = 1

    def run(command):
        ran.append(command[2:])
        return Result()

    monkeypatch.setattr(__main__.subprocess, "run", run)
    assert __main__.main(["--quick"]) == 1
    assert ran == [[f"benchmarks.{topic}", "--quick"] for topic in TOPICS]
    Result.returncode, ran[:] = 0, []
    assert __main__.main(["training"]) == 0
    assert ran == [["benchmarks.training"]]
    with pytest.raises(SystemExit):
        __main__.main(["speed"])
