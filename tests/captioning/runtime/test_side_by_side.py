"""Jobs in processes: so many at once, what they tell, how they fail, how they are stopped."""

import os
import signal
import threading
import time
from functools import partial

import pytest

from captioning.runtime import stopping
from captioning.runtime.errors import UserError
from captioning.runtime.side_by_side import Job, ranks_of, run_jobs
from tests.captioning.runtime import jobs


@pytest.fixture
def job(tmp_path):
    return lambda name, do, *given: Job(name, partial(do, *given), tmp_path / f"{name}.log")


def run(*given, at_once=2):
    heard = []
    run_jobs(given, at_once, lambda *told: heard.append(told), lambda: None)
    return heard


def test_all_are_done_and_what_they_print_is_in_their_logs(job, tmp_path):
    run(job("a", jobs.say_and_end, "of a", 0), job("b", jobs.say_and_end, "of b", None), at_once=1)
    assert (tmp_path / "a.log").read_text() == "of a\n"
    assert (tmp_path / "b.log").read_text() == "of b\n"


def test_a_bar_is_told_and_not_drawn(job, tmp_path):
    heard = run(job("a", jobs.count))
    assert {told[:2] for told in heard} == {("a", "epoch 1/1")}
    shares = [share for _, _, share in heard]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert (tmp_path / "a.log").read_text() == ""


def test_so_many_are_at_work_at_once(job, tmp_path):
    run(*(job(name, jobs.meet, str(tmp_path), 2) for name in "ab"))
    with pytest.raises(UserError, match="a failed: it ended with exit code 1; its last lines"):
        # Alone, none meets the other.
        run(*(job(name, jobs.meet, str(tmp_path), 4) for name in "ab"), at_once=1)


def test_ranks_are_one_process_group(job, tmp_path):
    run(*ranks_of(job("sum", jobs.sum_of_ranks, str(tmp_path)), 2))
    assert (tmp_path / "rank0").read_text() == (tmp_path / "rank1").read_text() == "3"
    alone = job("sum", jobs.count)
    assert ranks_of(alone, 1) == [alone]


def test_the_line_of_one_that_fails_is_told_and_the_others_end(job, tmp_path):
    (tmp_path / "said.log").write_text("error: of an earlier time\n")
    waits = job("waits", jobs.until_asked, str(tmp_path))
    with pytest.raises(UserError) as told:
        run(waits, job("said", jobs.say_and_end, "error: no such folder", 2))
    assert str(told.value) == "no such folder"
    assert len(list(tmp_path.glob("up.*"))) == len(list(tmp_path.glob("asked.*")))


@pytest.mark.parametrize(
    ("do", "how"), [(jobs.die, "signal 9"), (jobs.break_down, "exit code 1")], ids=["killed", "bug"]
)
def test_one_that_is_killed_or_has_a_bug_is_told_in_a_line(job, tmp_path, do, how):
    with pytest.raises(UserError) as told:
        run(job("bad", do))
    assert str(told.value) == f"bad failed: it ended with {how}; its last lines are in " + str(
        tmp_path / "bad.log"
    )
    assert ("RuntimeError: a bug" in (tmp_path / "bad.log").read_text()) == (how != "signal 9")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_is_passed_on_and_begins_no_other(job, tmp_path, number):
    waiting = [job(name, jobs.until_asked, str(tmp_path)) for name in "abc"]

    def ask():
        while len(list(tmp_path.glob("up.*"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(stopping.Stopped):
        run(*waiting)
    asking.join()
    assert len(list(tmp_path.glob("up.*"))) == len(list(tmp_path.glob("asked.*"))) == 2
