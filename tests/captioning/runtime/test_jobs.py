"""Jobs in parallel processes: their logs, failures and stops."""

import os
import signal
import time
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import pytest

from captioning.runtime import distributed, signals
from captioning.runtime.errors import UserError
from captioning.runtime.jobs import Job, Observer, ranks_of, run_jobs, start_server
from captioning.runtime.program import run_program
from tests.captioning.conftest import is_running
from tests.processes import Processes
from tests.programs import raises_line


def do(code, folder):
    """Execute code, which may set `exit_code` and call the functions below."""
    found = {**globals(), "folder": Path(folder), "exit_code": None}
    exec(code, found)
    return found["exit_code"]


def until_asked(folder):
    """Write a file at the beginning, and one when a stop is requested."""

    def wait():
        (folder / f"up.{os.getpid()}").touch()
        while not signals.stop_requested():
            time.sleep(0.02)
        (folder / f"asked.{os.getpid()}").touch()

    run_program(wait)


def wait_for(folder, pattern, count):
    """Wait until the folder has `count` files that match, or more."""
    until = time.monotonic() + 60
    while len(list(folder.glob(pattern))) < count:
        assert time.monotonic() < until, pattern
        time.sleep(0.02)


def sum_of_ranks(folder):
    distributed.start("cpu")
    total = distributed.gather_on_main(distributed.rank() + 1)
    (folder / f"rank{distributed.rank()}").write_text(f"{total} on {os.environ['GPU']}")
    distributed.stop()


@pytest.fixture(scope="module", autouse=True)
def imported_once():
    """Start the fork server with the modules of the jobs, even if another test has started one."""
    forkserver._forkserver._stop()
    start_server([__name__])


@pytest.fixture
def job(tmp_path):
    return lambda name, code: Job(name, partial(do, code, tmp_path), tmp_path / f"{name}.log")


def run(*given, slots=({}, {}), keep_going=False, poll=lambda: None):
    """Run jobs; return {name: reason} of those that ended. poll: called several times a second."""
    observer, outcomes = Observer(), {}
    observer.on_end, observer.poll = outcomes.__setitem__, poll
    failures = run_jobs(given, slots, observer, keep_going)
    assert failures == {name: reason for name, reason in outcomes.items() if reason}
    return outcomes


def test_ranks_are_one_process_group_each_with_the_environment_of_its_slot(job, tmp_path):
    run(*ranks_of(job("sum", "sum_of_ranks(folder)"), 2), slots=[{"GPU": "a"}, {"GPU": "b"}])
    said = {(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)}
    assert said in ({"[1, 2] on a", "None on b"}, {"[1, 2] on b", "None on a"})


def test_the_last_error_line_of_a_job_is_why_it_failed(job, tmp_path):
    (tmp_path / "silent.log").write_text("error: of an earlier time\n")
    found = run(
        job("said", r"print('bar:  40%\rerror: no such folder'); exit_code = 2"),
        job("silent", "exit_code = 7"),
        job("killed", "os.kill(os.getpid(), 9)"),
        job("buggy", "raise RuntimeError('a bug')"),
        job("stopped", "os.kill(os.getpid(), 15); until_asked(folder)"),
        job("good", "print('well done')"),
        keep_going=True,
    )
    assert (found.pop("said"), found.pop("good")) == ("no such folder", None)
    for name, code in {"silent": 7, "killed": -9, "buggy": 1, "stopped": 3}.items():
        log = tmp_path / f"{name}.log"
        assert found[name] == f"it ended with exit code {code}; its last lines are in {log}"
    assert (tmp_path / "good.log").read_text() == "well done\n"
    assert "RuntimeError: a bug" in (tmp_path / "buggy.log").read_text()


def test_the_first_failure_is_the_cause_and_is_logged_at_once(job, tmp_path, capsys):
    logged = []
    late = job("late", "until_asked(folder); print('error: the other is missing'); exit_code = 2")
    full = job(
        "full", "wait_for(folder, 'up.*', 1); print('error: the disk is full'); exit_code = 2"
    )
    with raises_line(UserError, start="full failed: the disk is full"):
        run(late, full, poll=lambda: logged.append(capsys.readouterr().err))
    assert "".join(logged) == "full failed: the disk is full; the running jobs save and stop\n"
    assert len(list(tmp_path.glob("asked.*"))) == 1


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_request_to_stop_is_passed_on_and_begins_no_other(job, tmp_path, number):
    """Slurm and a terminal signal the fork server, too, which ignores it."""

    def ask_once_both_are_up():
        if len(list(tmp_path.glob("up.*"))) == 2 and not signals.stop_requested():
            for process in (forkserver._forkserver._forkserver_pid, os.getpid()):
                os.kill(process, number)

    with pytest.raises(signals.Stopped):
        run(*(job(name, "until_asked(folder)") for name in "abc"), poll=ask_once_both_are_up)
    assert len(list(tmp_path.glob("up.*"))) == len(list(tmp_path.glob("asked.*"))) == 2


def test_ctrl_c_twice_kills_those_that_do_not_stop(job, tmp_path):
    def poll():
        for _ in range(2 if list(tmp_path.glob("up.*")) else 0):
            os.kill(os.getpid(), signal.SIGINT)

    deaf = "(folder / f'up.{os.getpid()}').touch(); [time.sleep(1) for _ in range(1000)]"
    with pytest.raises(KeyboardInterrupt):
        run(job("deaf", deaf), poll=poll)
    assert not is_running(next(tmp_path.glob("up.*")).suffix[1:])


@pytest.mark.slow
def test_jobs_end_with_the_program_that_is_killed(job, tmp_path):
    def program(names):
        start_server([])
        run(*(job(name, "until_asked(folder)") for name in names))

    killed = Processes(program, "ab", tmp_path / "said")
    wait_for(tmp_path, "up.*", 2)
    killed.send(signal.SIGKILL)
    wait_for(tmp_path, "asked.*", 2)
