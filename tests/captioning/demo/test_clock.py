"""The demo's time left, against values computed by hand, and its first captions."""

import json
from types import SimpleNamespace

import pytest

from captioning.demo.clock import PACE, PRIOR_S, SCORING_S, Clock
from captioning.sweep.runs import SweepRun


@pytest.fixture
def clock_of(tmp_path, monkeypatch):
    """Return a function that makes a clock of two runs of an epoch, and one that sets its time.

    Each run trains on 10 * PACE images in batches of PACE.
    """
    now = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.setattr("captioning.demo.clock.POLL_S", 0)
    config = SimpleNamespace(batch_size=PACE, max_epoch=1)
    monkeypatch.setattr(SweepRun, "config", lambda run: config)
    runs = [SweepRun(tmp_path / name, [], []) for name in ("mle", "smile")]

    def make():
        return Clock(runs, 10 * PACE, runs, tmp_path)

    return make, lambda seconds: now.__setitem__(0, 100.0 + seconds)


def train(folder, steps):
    folder.mkdir(exist_ok=True)
    (folder / "log.jsonl").write_text(json.dumps({"event": "step", "step": steps}) + "\n")


def seconds_left(clock):
    clock.poll()
    minutes, seconds = str(clock.bar).partition("about ")[2].split(" ")[0].split(":")
    return 60 * int(minutes) + int(seconds)


def test_the_time_left_follows_the_pace(clock_of, tmp_path):
    make, set_time = clock_of
    clock = make()
    assert seconds_left(clock) == 20 + SCORING_S
    set_time(1)
    train(tmp_path / "mle", 1)
    seconds_left(clock)
    set_time(1 + 2 * PRIOR_S)  # 5 batches in twice PRIOR_S: 5 in 61 s, with the prior 25
    train(tmp_path / "mle", 6)
    pace = (PRIOR_S + 5) / (3 * PRIOR_S + 1)
    assert seconds_left(clock) == pytest.approx((20 + SCORING_S - 6) / pace, abs=1)


def test_what_an_earlier_demo_did_tells_nothing_of_the_pace(clock_of, tmp_path):
    make, _ = clock_of
    train(tmp_path / "mle", 10)
    assert seconds_left(make()) == 10 + SCORING_S


def test_first_captions_are_printed_once_when_both_runs_have_some(clock_of, tmp_path, capsys):
    clock = clock_of[0]()
    for name in ("mle", "smile"):
        clock.poll()
        assert capsys.readouterr().err == ""
        file = tmp_path / name / "result" / "val_epoch00.json"
        file.parent.mkdir(parents=True)
        results = [{"image_id": i, "caption": f"caption {i} of {name}"} for i in range(4)]
        file.write_text(json.dumps(results))
    clock.poll()
    printed = capsys.readouterr().err.partition("that are being trained:\n")[2]
    assert printed.splitlines()[:6] == [
        f"{tmp_path}/images/scene_000000.png",
        *("  MLE    caption 0 of mle", "  SMILE  caption 0 of smile"),
        f"{tmp_path}/images/scene_000002.png",
        *("  MLE    caption 2 of mle", "  SMILE  caption 2 of smile"),
    ]
    clock.poll()
    clock.bar.close()
    clock_of[0]().poll()
    assert "caption" not in capsys.readouterr().err
