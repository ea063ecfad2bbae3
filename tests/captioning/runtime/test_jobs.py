"""Jobs in parallel processes: their logs, failures and stops."""

import os
import signal
import subprocess
import sys
from functools import partial
from multiprocessing import forkserver

import pytest

from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.jobs import Job, Observer, ranks_of, run_jobs, start_server
from tests.captioning.conftest import is_running
from tests.captioning.runtime import jobs


@pytest.fixture(scope="module", autouse=True)
def imported_once():
    """Start the fork server with the modules of the jobs, even if another test has started one."""
    forkserver._forkserver._stop()
    start_server([jobs.__name__, "captioning.runtime.distributed"])


@pytest.fixture
def job(tmp_path):
    return lambda name, do, *given: Job(name, partial(do, *given), tmp_path / f"{name}.log")


def run(*given, slots=({}, {}), keep_going=False, poll=lambda: None):
    """Run jobs; return {name: reason} of those that ended. poll: called several times a second."""
    observer, outcomes = Observer(), {}
    observer.on_end, observer.poll = outcomes.__setitem__, poll
    failures = run_jobs(given, slots, observer, keep_going)
    assert failures == {name: reason for name, reason in outcomes.items() if reason}
    return outcomes


def test_ranks_are_one_process_group(job, tmp_path):
    run(*ranks_of(job("sum", jobs.sum_of_ranks, str(tmp_path)), 2))
    assert (tmp_path / "rank0").read_text() == (tmp_path / "rank1").read_text() == "3"


def test_each_job_has_the_environment_of_its_slot(job, tmp_path):
    pairs = [job(f"{n}", jobs.meet, str(tmp_path), min(2 * (n // 2) + 2, 4)) for n in range(4)]
    run(*pairs, slots=[{"GPU": "0"}, {"GPU": "1"}])
    assert {path.name[-1] for path in tmp_path.glob("met.*")} == {"0", "1"}


def test_the_last_error_line_of_a_job_is_why_it_failed(job, tmp_path):
    (tmp_path / "said.log").write_text("error: of an earlier time\n")
    found = run(
        job("said", jobs.say_and_end, "bar:  40%\rerror: no such folder", 2),
        job("silent", jobs.say_and_end, "", 7),
        job("killed", jobs.die),
        job("buggy", jobs.break_down),
        job("stopped", jobs.stopped_by_another, str(tmp_path)),
        job("good", jobs.say_and_end, "well done", 0),
        keep_going=True,
    )
    ended = "it ended with exit code {}; its last lines are in {}"
    assert found == {
        "said": "no such folder",
        "silent": ended.format(7, tmp_path / "silent.log"),
        "killed": ended.format(-9, tmp_path / "killed.log"),
        "buggy": ended.format(1, tmp_path / "buggy.log"),
        "stopped": "it was stopped by another program; run the same command again to continue",
        "good": None,
    }
    assert (tmp_path / "good.log").read_text() == "well done\n"
    assert "RuntimeError: a bug" in (tmp_path / "buggy.log").read_text()
    again = run(job("said", jobs.say_and_end, "", 4), keep_going=True)
    assert again == {"said": ended.format(4, tmp_path / "said.log")}


def test_the_first_failure_is_the_cause_and_is_logged_at_once(job, tmp_path, capsys):
    logged = []
    late = job("late", jobs.fail_when_asked, str(tmp_path))
    first = job("first", jobs.fail_once_up, str(tmp_path), "error: the disk is full", 2)
    with pytest.raises(UserError, match=r"^first failed: the disk is full$"):
        run(late, first, poll=lambda: logged.append(capsys.readouterr().err))
    assert "".join(logged) == "first failed: the disk is full; the others save and stop\n"
    assert len(list(tmp_path.glob("up.*"))) == len(list(tmp_path.glob("asked.*"))) == 1


@pytest.mark.parametrize(
    ("number", "whom"),
    [(signal.SIGTERM, "program"), (signal.SIGUSR1, "all"), (signal.SIGINT, "all")],
)
def test_a_request_to_stop_is_passed_on_and_begins_no_other(job, tmp_path, number, whom):
    """Slurm and a terminal signal the fork server, too, which ignores it."""

    def ask_once_both_are_up():
        if len(list(tmp_path.glob("up.*"))) == 2 and not signals.stop_requested():
            if whom == "all":
                os.kill(forkserver._forkserver._forkserver_pid, number)
            os.kill(os.getpid(), number)

    waiting = [job(name, jobs.until_stop_requested, str(tmp_path)) for name in "abc"]
    with pytest.raises(signals.Stopped):
        run(*waiting, poll=ask_once_both_are_up)
    assert len(list(tmp_path.glob("up.*"))) == len(list(tmp_path.glob("asked.*"))) == 2


def test_ctrl_c_twice_kills_those_that_do_not_stop(job, tmp_path):
    def poll():
        for _ in range(2 if list(tmp_path.glob("up.*")) else 0):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(job("deaf", jobs.never_end, str(tmp_path)), poll=poll)
    assert not is_running(next(tmp_path.glob("up.*")).suffix[1:])


PROGRAM = """
import sys
from functools import partial
from pathlib import Path
from captioning.runtime.jobs import Job, Observer, run_jobs, start_server
from tests.captioning.runtime import jobs

start_server([])
do = partial(jobs.until_stop_requested, sys.argv[1])
run_jobs([Job(name, do, Path(sys.argv[1], name)) for name in "ab"], [{}, {}], Observer())
"""


@pytest.mark.slow
def test_jobs_end_with_the_program_that_is_killed(tmp_path, repository):
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=repository)
    jobs.wait_for_all(tmp_path, "up.*", 2)
    program.kill()
    program.wait()
    jobs.wait_for_all(tmp_path, "asked.*", 2)
