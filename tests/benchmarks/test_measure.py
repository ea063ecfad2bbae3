"""What a row holds, and what a topic prints and keeps of its rows."""

import json
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from benchmarks import measure
from benchmarks.measure import compare, peak_growth
from tests.programs import refused, run_program

SECONDS = {"ours": [1.0, 2.0, 4.0], "theirs": [3.0, 4.0, 4.0], "slow": [9.0, 9.0, 9.0]}


def broken():
    raise ValueError("no\nmemory")


@pytest.fixture
def works(monkeypatch):
    """Contenders that take SECONDS, and as many bytes as seconds in the first round."""
    queues = {name: iter(times) for name, times in SECONDS.items()}
    monkeypatch.setattr(measure, "measure_seconds", lambda work: next(queues[work()]))
    monkeypatch.setattr(measure, "peak_growth", lambda work: SECONDS[work()][0])
    return {name: lambda name=name: name for name in SECONDS}


def test_a_row_holds_ratios_of_medians_and_of_rounds(works):
    row = compare({**works, "broken": broken}, ["broken", "theirs", "slow"], 3, (6, "captions"))
    assert (row["peer"], row["unit"]) == ("theirs", "captions")
    assert row["failed"] == {"broken": "ValueError('no\\nmemory')"}  # which costs itself alone
    assert row["contenders"].keys() == SECONDS.keys()
    ours, theirs = row["contenders"]["ours"], row["contenders"]["theirs"]
    assert (ours["median"], ours["ratio"], ours["spread"]) == (2.0, 2.0, [1.0, 3.0])
    assert (ours["rate"], ours["memory"], ours["times"]) == (3.0, 1.0, SECONDS["ours"])
    assert (theirs["ratio"], theirs["spread"]) == (1.0, [1.0, 1.0])


def test_without_a_peer_the_fastest_is_it_and_without_contenders_there_is_no_row(works):
    assert compare(works, ["absent"], 3)["peer"] == "ours"
    with pytest.raises(RuntimeError, match="no contender ran"):
        compare({"broken": broken}, [], 1)


def test_memory_is_that_of_the_call_beyond_what_it_held_before():
    def allocate(megabytes):
        return torch.ones(megabytes, 2**20, dtype=torch.uint8)

    held = [allocate(300)]

    def work():
        held[:] = []
        held[:] = [allocate(300)]
        return allocate(100).max()

    for call, expected in ((lambda: allocate(100).max(), 100), (work, 100), (lambda: 0, 0)):
        assert expected - 1 <= peak_growth(call) / 2**20 < expected + 40


def test_rows_are_printed_and_kept_as_they_are_measured(works, monkeypatch, tmp_path):
    def stopped():
        raise KeyboardInterrupt

    def cases(options):
        measured = partial(compare, works, ["theirs"], options.rounds, (3, "images"))
        return {"step": measured, "broken": broken, "end": stopped}

    topic = SimpleNamespace(cases=cases, ROUNDS=3)
    monkeypatch.setitem(sys.modules, "benchmarks.loader", topic)
    with pytest.raises(KeyboardInterrupt):
        run_program("benchmarks", "loader", "--output", tmp_path)
    content = json.loads((tmp_path / "loader.json").read_text())
    assert [row["title"] for row in content["rows"]] == ["step", "broken"]
    assert content["rows"][0]["contenders"]["ours"]["times"] == SECONDS["ours"]
    assert content["machine"]["torch"] and content["machine"]["cores"]
    topic.cases = lambda options: {"step": lambda: content["rows"][0], "broken": broken}
    code, out, _ = run_program("benchmarks", "loader", "--output", tmp_path)
    _, _, heading, ours, *_, failure, _, summary = out.splitlines()[1:]
    assert heading.split()[-3:] == ["images", "a", "second"]
    assert ours.split() == ["ours", "2000.00", "2.00", "1.00-3.00", "0.00", "1.50"]
    assert code == 1 and "FAILED" in failure and "no\\nmemory" in failure
    assert summary == f"2 rows, 1 failed: {tmp_path / 'loader.json'}"


def test_wrong_arguments_are_one_line(tmp_path):
    refused("benchmarks", "speed", part="invalid choice: 'speed'")
    refused("benchmarks", "objective", "--against", tmp_path, part="has no folder smile")
