"""Runs jobs in parallel processes, each with a log file.

The jobs are forked from multiprocessing's fork server, a process that has imported the jobs'
modules and has no threads. Therefore a job starts without imports, and no process with threads is
forked, which could deadlock.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.program import FAILED
from captioning.runtime.progress import log_line, report_bars_to
from captioning.runtime.start import configure_process

STOPPED = 3  # exit code of a job that saved and stopped on request
_CONTEXT = multiprocessing.get_context("forkserver")


class Job(NamedTuple):
    """A job.

    run: a picklable function that returns an exit code, or None for 0. log: the file to which the
    job's output is appended. environment: environment variables that are set for the job.
    """

    name: str
    run: Callable[[], Optional[int]]
    log: Path
    environment: Mapping[str, str] = {}


class Observer:
    """Receives the events of `run_jobs`. Subclasses show the events to the user."""

    def on_start(self, job: Job) -> None:
        """Called when a job has started. `job.environment` includes the slot's variables."""

    def on_progress(self, name: str, description: str, share: float) -> None:
        """Called when the progress bar of the job `name` advances.

        description: the bar's text. share: the finished part of the bar, from 0 to 1.
        """

    def on_end(self, name: str, reason: Optional[str]) -> None:
        """Called when the job `name` has ended. reason: why it failed; None if it succeeded.

        Not called for a job that was stopped on request, or killed by `run_jobs`.
        """

    def poll(self) -> None:
        """Called several times a second."""


class _RunningJob(NamedTuple):
    job: Job
    slot: Mapping[str, str]
    process: multiprocessing.process.BaseProcess
    reports: connection.Connection
    log_offset: int  # size of the log in bytes before this run

    def pass_reports(self, observer: Observer) -> None:
        with contextlib.suppress(EOFError):
            while self.reports.poll():
                observer.on_progress(self.job.name, *self.reports.recv())

    def reason(self) -> Optional[str]:
        """Return why an ended job failed; None if the job succeeded.

        The reason is the job's last error line or, without one, its exit code or signal.
        """
        code = self.process.exitcode
        if code == 0:
            return None
        if code == STOPPED:
            return "it was stopped by another program; run the same command again to continue"
        lines = self.job.log.read_bytes()[self.log_offset :].decode(errors="replace").splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if errors:
            return errors[-1]
        outcome = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"it ended with {outcome}; its last lines are in {self.job.log}"


def cores() -> int:
    """Return the number of cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def preload_modules(modules: Sequence[str]) -> None:
    """Start the fork server early, so that it imports these modules in the background."""
    _CONTEXT.set_forkserver_preload(list(modules))
    _start_fork_server()


def _start_fork_server() -> None:
    """Start the fork server, unless it runs. It ignores signals, and ends with this process.

    A job ignores signals, too, until it has begun to handle them.
    """
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in signals.SIGNALS}
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def ranks_of(job: Job, count: int) -> list[Job]:
    """Return `count` copies of the job that form one process group on this machine.

    Rank 0 writes to the job's log file; each other rank has its own log file beside it.
    """
    if count == 1:
        return [job]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
    # Without this variable, gloo resolves the machine's host name, which can fail.
    if sys.platform == "linux":
        group["GLOO_SOCKET_IFNAME"] = "lo"
    group["WORLD_SIZE"] = str(count)
    ranks = []
    for rank in map(str, range(count)):
        log = job.log if rank == "0" else job.log.with_suffix(f".rank{rank}{job.log.suffix}")
        environment = {**job.environment, **group, "RANK": rank, "LOCAL_RANK": rank}
        ranks.append(job._replace(log=log, environment=environment))
    return ranks


def run_jobs(
    jobs: Sequence[Job],
    slots: Sequence[Mapping[str, str]],
    observer: Observer,
    keep_going: bool = False,
) -> dict[str, str]:
    """Run all jobs, one at a time in each slot; return {name: reason} of the failed jobs.

    slots: the environment variables of each slot, such as its GPU. keep_going: whether to start
    further jobs after a job has failed. If false, the other jobs are asked to save and stop, and
    UserError is raised with the reason of the failure.

    If this process is asked to stop, starts no further jobs, waits until the running jobs have
    saved, then raises Stopped. Raises
    KeyboardInterrupt at once when Ctrl-C is pressed twice.
    """
    _start_fork_server()
    waiting, free_slots, running = list(jobs), list(slots), []
    failures = {}
    cause = None  # why the first failed job failed
    stopping = False  # whether the running jobs have been asked to stop
    with signals.watch(), _killed_at_end(running):
        while running or waiting:
            while waiting and free_slots:
                running.append(_start(waiting.pop(0), free_slots.pop(0)))
                observer.on_start(running[-1].job)
            for ended in _wait_for_ended(running, observer):
                running.remove(ended)
                free_slots.append(ended.slot)
                code, name, reason = ended.process.exitcode, ended.job.name, ended.reason()
                if code == STOPPED and (stopping or signals.stop_requested()):
                    continue
                if reason:
                    failures[name] = reason
                    cause = cause or (reason if code == FAILED else f"{name} failed: {reason}")
                observer.on_end(name, reason)
            observer.poll()
            if not stopping and (signals.stop_requested() or (cause and not keep_going)):
                stopping = True
                waiting.clear()
                if signals.stop_requested():
                    log_line(f"stopping by {signals.stop_requested()}: saving")
                elif running:
                    log_line(f"{cause}; the others save and stop")
            if stopping:
                # Send SIGTERM in every round, because a job that has just started ignores it.
                for entry in running:
                    entry.process.terminate()
        if signals.stop_requested():
            raise signals.Stopped
    if cause and not keep_going:
        raise UserError(cause)
    return failures


@contextlib.contextmanager
def _killed_at_end(running: Sequence[_RunningJob]) -> Iterator[None]:
    """Kill the jobs that still run when the block ends, after a second Ctrl-C or an error."""
    try:
        yield
    finally:
        for entry in running:
            entry.process.kill()
            entry.process.join()


def _wait_for_ended(running: Sequence[_RunningJob], observer: Observer) -> list[_RunningJob]:
    """Wait up to 0.1 s for a job to end. Pass on all reports; return the jobs that have ended."""
    connection.wait([entry.process.sentinel for entry in running], 0.1)
    ended = [entry for entry in running if entry.process.exitcode is not None]
    for entry in running:
        entry.pass_reports(observer)
    return ended


def _start(job: Job, slot: Mapping[str, str]) -> _RunningJob:
    job = job._replace(environment={**job.environment, **slot})
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with open(job.log, "ab") as log:
        log_offset = log.tell()
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run_job, args=(job, sender))
    process.start()
    sender.close()
    return _RunningJob(job, slot, process, receiver, log_offset)


def _run_job(job: Job, reports: connection.Connection) -> None:
    """Run a job and end the process with the job's exit code. Called in the job's process."""
    os.setsid()  # so that Ctrl-C reaches only the main program, which sends SIGTERM to the jobs
    os.environ.update(job.environment)
    os.environ[signals.PARENT] = str(os.getppid())
    configure_process()
    # The fork server ends when no process holds this descriptor. Jobs close their copy, so that
    # the fork server ends with the main program.
    os.close(forkserver._forkserver._forkserver_alive_fd)
    # Let the job's data loaders use the default start method: otherwise they leak semaphores.
    multiprocessing.set_start_method(None, force=True)
    with open(job.log, "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    def send(description, share):
        try:
            reports.send((description, share))
        except OSError:  # the main program has died: the fork server may end later
            signal.raise_signal(signal.SIGTERM)

    code = 1
    try:
        report_bars_to(send)
        with signals.watch():
            code = job.run() or (STOPPED if signals.stop_requested() else 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        signals.end_workers()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
