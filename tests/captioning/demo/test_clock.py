"""The demo's time left, against values computed by hand."""

import json
from types import SimpleNamespace

import pytest

from captioning.demo.clock import PACE, PRIOR_S, SCORING_S, Clock
from captioning.sweep.runs import SweepRun


def test_the_time_left_follows_the_pace_of_this_call(tmp_path, monkeypatch):
    """Two runs train on 10 * PACE images each, in batches of PACE."""
    now = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.setattr("captioning.demo.clock.POLL_S", 0)
    config = SimpleNamespace(batch_size=PACE, max_epoch=1)
    monkeypatch.setattr(SweepRun, "config", lambda run: config)
    runs = [SweepRun(tmp_path / name, [], []) for name in ("mle", "smile")]

    def seconds_left(clock, passed, steps):
        now[0] = 100.0 + passed
        runs[0].folder.mkdir(exist_ok=True)
        line = json.dumps({"event": "step", "step": steps})
        (runs[0].folder / "log.jsonl").write_text(line + "\n")
        clock.poll()
        minutes, seconds = str(clock.bar).partition("about ")[2].split(" ")[0].split(":")
        return 60 * int(minutes) + int(seconds)

    clock = Clock(runs, 10 * PACE, runs, tmp_path)
    assert seconds_left(clock, 0, 0) == 20 + SCORING_S
    left = seconds_left(clock, 2 * PRIOR_S, 5)  # 5 batches in twice PRIOR_S
    pace = (PRIOR_S + 5) / (3 * PRIOR_S)
    assert left == pytest.approx((20 + SCORING_S - 5) / pace, abs=1)
    # What an earlier call trained tells nothing of the pace.
    now[0] = 100.0
    assert seconds_left(Clock(runs, 10 * PACE, runs, tmp_path), 0, 5) == 15 + SCORING_S
