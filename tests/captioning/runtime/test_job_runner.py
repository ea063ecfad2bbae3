"""Jobs in parallel processes: their reports, failures and stops."""

import os
import signal
import subprocess
import sys
from functools import partial
from multiprocessing import forkserver

import pytest

from captioning.runtime import job_runner, signals
from captioning.runtime.errors import UserError
from captioning.runtime.job_runner import Job, Observer, ranks_of, run_jobs
from tests.captioning.conftest import is_running
from tests.captioning.runtime import jobs


@pytest.fixture(scope="module", autouse=True)
def imported_once():
    """Start the fork server with the modules of the jobs, even if another test has started one."""
    forkserver._forkserver._stop()
    job_runner.preload_modules([jobs.__name__, "captioning.runtime.distributed"])


@pytest.fixture
def job(tmp_path):
    return lambda name, do, *given: Job(name, partial(do, *given), tmp_path / f"{name}.log")


class Recorded(Observer):
    """Records the reports of a run of jobs."""

    def __init__(self, poll):
        self.shares, self.outcomes, self.poll = [], {}, poll

    def on_progress(self, *report):
        self.shares.append(report)

    def on_end(self, name, reason):
        self.outcomes[name] = reason


def run(*given, parallel=2, slots=None, keep_going=False, poll=lambda: None):
    recorded = Recorded(poll)
    failures = run_jobs(given, slots or [{}] * parallel, recorded, keep_going)
    assert failures == {name: reason for name, reason in recorded.outcomes.items() if reason}
    return recorded


def ask_when(there, number=signal.SIGTERM):
    """Return a `poll` that requests a stop once `there` is true."""

    def poll():
        if not signals.stop_requested() and there():
            os.kill(os.getpid(), number)

    return poll


def test_all_are_done_and_what_they_print_is_in_their_logs(job, tmp_path):
    run(job("a", jobs.say_and_end, "of a", 0), job("b", jobs.say_and_end, "of b", None), parallel=1)
    assert (tmp_path / "a.log").read_text() == "of a\n"
    assert (tmp_path / "b.log").read_text() == "of b\n"


def test_a_bar_is_reported_and_not_drawn(job, tmp_path):
    recorded = run(job("a", jobs.count))
    assert {report[:2] for report in recorded.shares} == {("a", "epoch 1/1")}
    shares = [share for _, _, share in recorded.shares]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert (tmp_path / "a.log").read_text() == ""


def test_ranks_are_one_process_group(job, tmp_path):
    run(*ranks_of(job("sum", jobs.sum_of_ranks, str(tmp_path)), 2))
    assert (tmp_path / "rank0").read_text() == (tmp_path / "rank1").read_text() == "3"
    alone = job("sum", jobs.count)
    assert ranks_of(alone, 1) == [alone]


def test_the_first_error_is_the_cause_and_is_logged_at_once(job, tmp_path, capsys):
    logged = []
    late = job("late", jobs.fail_when_asked, str(tmp_path))
    first = job("first", jobs.fail_once_up, str(tmp_path), "error: the disk is full", 2)
    with pytest.raises(UserError, match=r"^the disk is full$"):
        run(late, first, poll=lambda: logged.append(capsys.readouterr().err))
    assert list(filter(None, logged)) == ["the disk is full; the others save and stop\n"]
    assert len(list(tmp_path.glob("up.*"))) == len(list(tmp_path.glob("asked.*"))) == 1


def test_one_that_has_a_bug_or_is_stopped_by_somebody_else_is_told_in_a_line(job, tmp_path):
    log = tmp_path / "bad.log"
    with pytest.raises(UserError) as told:
        run(job("bad", jobs.break_down))
    assert str(told.value) == f"bad failed: it ended with exit code 1; its last lines are in {log}"
    assert "RuntimeError: a bug" in log.read_text()
    with pytest.raises(UserError, match=r"^bad failed: it was stopped by another program"):
        run(job("bad", jobs.stopped_by_another, str(tmp_path)))


@pytest.mark.parametrize(
    ("number", "whom"),
    [(signal.SIGTERM, "program"), (signal.SIGUSR1, "all"), (signal.SIGINT, "all")],
)
def test_a_request_to_stop_is_passed_on_and_begins_no_other(job, tmp_path, number, whom):
    """Slurm and a terminal signal the fork server, too, which ignores it."""

    def both_are_up():
        up = len(list(tmp_path.glob("up.*"))) == 2
        if up and whom == "all":
            os.kill(forkserver._forkserver._forkserver_pid, number)
        return up

    waiting = [job(name, jobs.until_stop_requested, str(tmp_path)) for name in "abc"]
    with pytest.raises(signals.Stopped):
        run(*waiting, poll=ask_when(both_are_up, number))
    assert len(list(tmp_path.glob("up.*"))) == len(list(tmp_path.glob("asked.*"))) == 2


def test_ctrl_c_twice_kills_those_that_do_not_stop(job, tmp_path):
    def poll():
        for _ in range(2 if list(tmp_path.glob("up.*")) else 0):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(job("deaf", jobs.never_end, str(tmp_path)), poll=poll)
    assert not is_running(next(tmp_path.glob("up.*")).suffix[1:])


def test_jobs_that_fail_end_no_others_where_they_keep_going(job, tmp_path):
    (tmp_path / "said.log").write_text("error: of an earlier time\n")
    recorded = run(
        job("said", jobs.say_and_end, "error: no such folder", 2),
        job("silent", jobs.say_and_end, "", 7),
        job("killed", jobs.die),
        job("good", jobs.say_and_end, "", 0),
        parallel=1,
        keep_going=True,
    )
    assert recorded.outcomes == {
        "said": "no such folder",
        "silent": f"it ended with exit code 7; its last lines are in {tmp_path / 'silent.log'}",
        "killed": f"it ended with signal 9; its last lines are in {tmp_path / 'killed.log'}",
        "good": None,
    }
    # The log still has the earlier error.
    again = run(job("said", jobs.say_and_end, "", 4), keep_going=True)
    assert again.outcomes["said"].startswith("it ended with exit code 4")


def test_each_job_has_the_environment_of_its_slot(job, tmp_path):
    pairs = [job(f"{n}", jobs.meet, str(tmp_path), min(2 * (n // 2) + 2, 4)) for n in range(4)]
    run(*pairs, slots=[{"GPU": "0"}, {"GPU": "1"}])
    assert {path.name[-1] for path in tmp_path.glob("met.*")} == {"0", "1"}


@pytest.mark.slow
def test_a_request_is_kept_for_a_job_that_is_not_up_yet(job, tmp_path):
    forkserver._forkserver._stop()  # run_jobs starts it again
    ask = ask_when((tmp_path / "coming").exists)
    calls_since = []

    def poll():
        ask()
        if signals.stop_requested():
            calls_since.append(1)
        if len(calls_since) == 3:  # the job has been signalled, if it ever is
            (tmp_path / "released").touch()

    with pytest.raises(signals.Stopped):
        run(job("late", jobs.SlowToCome(str(tmp_path))), poll=poll)
    assert len(list(tmp_path.glob("asked.*"))) == 1


PROGRAM = """
import sys
from functools import partial
from pathlib import Path
from captioning.runtime.job_runner import Job, Observer, run_jobs
from tests.captioning.runtime import jobs

do = partial(jobs.until_stop_requested, sys.argv[1])
given = [Job(name, do, Path(sys.argv[1], name)) for name in "ab"]
run_jobs(given, [{}, {}], Observer())
"""


@pytest.mark.slow
def test_jobs_end_with_the_program_that_is_killed(tmp_path, repository):
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=repository)
    jobs.wait_for_all(tmp_path, "up.*", 2)
    program.kill()
    program.wait()
    jobs.wait_for_all(tmp_path, "asked.*", 2)
