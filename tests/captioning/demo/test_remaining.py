"""The time left, counted by hand."""

import pytest

from captioning.demo.remaining import TimeEstimate, format_seconds


@pytest.fixture
def clock():
    class Clock:
        now = 100.0

        def __call__(self):
            return self.now

    return Clock()


def test_the_time_left_follows_the_pace(clock):
    remaining = TimeEstimate([10, 100, 50], clock)
    assert remaining.seconds_left() == 160
    clock.now += 20  # the first step took twice as long as expected
    remaining.record(0, 1.0)
    remaining.record(1, 0.0)
    assert remaining.seconds_left() == pytest.approx(2 * 150)
    clock.now += 40  # and the next begins at the same pace as expected: 60 s for 50
    remaining.record(1, 0.4)
    assert remaining.seconds_left() == pytest.approx(60 / 50 * (60 + 50))


def test_what_was_done_before_tells_nothing_of_the_pace(clock):
    remaining = TimeEstimate([100, 50], clock)
    clock.now += 15  # setting up
    remaining.record(0, 0.5, first=True)
    assert remaining.seconds_left() == 100
    clock.now += 30
    remaining.record(0, 0.6)
    assert remaining.seconds_left() == pytest.approx(30 / 10 * (40 + 50))


def test_jobs_that_run_one_after_the_other(clock):
    """The start-up of each job does not count, the work of the jobs before it does."""
    remaining = TimeEstimate([300], clock)
    for job in range(2):
        clock.now += 7
        remaining.record(0, job / 3, first=True)
        clock.now += 100
        remaining.record(0, (job + 1) / 3)
        assert remaining.seconds_left() == pytest.approx(100 * (2 - job))


@pytest.mark.parametrize(
    ("seconds", "said"), [(2, "10 s"), (44, "40 s"), (89, "90 s"), (90, "1.5 min")]
)
def test_in_words(seconds, said):
    assert format_seconds(seconds) == said
