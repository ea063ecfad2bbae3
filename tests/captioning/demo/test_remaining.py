"""The estimated time left, against values computed by hand."""

import time

import pytest

from captioning.demo.remaining import TimeEstimate, format_seconds


@pytest.fixture
def wait(monkeypatch):
    """Return a function that lets seconds pass."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return lambda seconds: clock.__setitem__(0, clock[0] + seconds)


def test_the_time_left_follows_the_pace(wait):
    remaining = TimeEstimate([10, 100, 50])
    assert remaining.seconds_left() == 160
    wait(20)  # the first step took twice as long as expected
    remaining.record(0, 1.0)
    assert remaining.seconds_left() == pytest.approx(2 * 150)
    wait(40)  # and the next begins at the same pace as expected: 60 s for 50
    remaining.record(1, 0.4)
    assert remaining.seconds_left() == pytest.approx(60 / 50 * (60 + 50))


def test_what_was_done_before_tells_nothing_of_the_pace(wait):
    remaining = TimeEstimate([100, 50])
    wait(15)  # setting up
    remaining.record(0, 0.5, measures=False)
    assert remaining.seconds_left() == 100
    wait(30)
    remaining.record(0, 0.6)
    assert remaining.seconds_left() == pytest.approx(30 / 10 * (40 + 50))


@pytest.mark.parametrize(
    ("seconds", "said"), [(2, "10 s"), (44, "40 s"), (89, "90 s"), (90, "1.5 min")]
)
def test_seconds_are_told_in_steps_of_their_size(seconds, said):
    assert format_seconds(seconds) == said
