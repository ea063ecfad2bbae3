"""Runs jobs of one program in parallel processes. Each job has a log file.

The jobs are forked from multiprocessing's fork server, a process that has imported their modules
and does nothing else. Therefore jobs start at once, and the program's threads are not forked.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.program import FAILED
from captioning.runtime.progress import log_line, report_bars_to
from captioning.runtime.start import keep_memory

STOPPED = 3  # exit code of a job that saved and stopped on request
_CONTEXT = multiprocessing.get_context("forkserver")


class Job(NamedTuple):
    """A job. do: a picklable function that returns an exit code, or None for 0. log: the file to
    which output is appended. environment: variables that the job has in addition."""

    name: str
    do: Callable[[], Optional[int]]
    log: Path
    environment: Mapping[str, str] = {}


class Observer:
    """Receives the events of `run_jobs`. A subclass shows them."""

    def began(self, job: Job) -> None:
        """A job has started. Its environment includes the slot's variables."""

    def progressed(self, name: str, description: str, share: float) -> None:
        """A job's progress bar has reached a share from 0 to 1. description: the bar's text."""

    def ended(self, name: str, reason: Optional[str]) -> None:
        """A job has ended. reason: why it failed; None if it succeeded."""

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
                observer.progressed(self.job.name, *self.reports.recv())

    def reason(self) -> Optional[str]:
        """Return why an ended job failed: its error line or its exit code; None if it succeeded."""
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


def prepare(modules: Sequence[str]) -> None:
    """Start the fork server, which imports these modules in the background.

    It ignores signals and ends with this process.
    """
    _CONTEXT.set_forkserver_preload(list(modules))
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in signals.SIGNALS}
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def ranks_of(job: Job, count: int) -> list[Job]:
    """Return `count` copies of the job, as the ranks of one process group on this machine.

    Each has its own log file; rank 0 has the job's.
    """
    if count == 1:
        return [job]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
    if sys.platform == "linux":  # else gloo resolves the machine's host name, which can fail
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

    `prepare` has to be called before. slots: each slot's environment variables. keep_going:
    continue after a failed job. Without it, the other jobs are asked to save and stop, and
    UserError says why the job failed.

    Raises Stopped if this process was asked to stop, after all jobs have saved. Raises
    KeyboardInterrupt at once when Ctrl-C is pressed twice.
    """
    waiting, free, running = list(jobs), list(slots), []
    failures: dict[str, str] = {}
    cause = None  # why the first of the failed jobs failed
    stopping = False  # whether the running jobs are asked to stop
    with signals.watch():
        try:
            while running or (waiting and not stopping):
                while waiting and free and not stopping:
                    running.append(_start(waiting.pop(0), free.pop(0)))
                    observer.began(running[-1].job)
                connection.wait([entry.process.sentinel for entry in running], 0.1)
                all_ended = [entry for entry in running if entry.process.exitcode is not None]
                for entry in running:
                    entry.pass_reports(observer)
                for ended in all_ended:
                    running.remove(ended)
                    free.append(ended.slot)
                    code, name, reason = ended.process.exitcode, ended.job.name, ended.reason()
                    if code == STOPPED and (stopping or signals.stop_requested()):
                        continue
                    if reason:
                        failures[name] = reason
                        cause = cause or (reason if code == FAILED else f"{name} failed: {reason}")
                    observer.ended(name, reason)
                observer.poll()
                if not stopping and (signals.stop_requested() or (cause and not keep_going)):
                    stopping = True
                    if signals.stop_requested():
                        log_line(f"stopping by {signals.stop_requested()}: saving")
                    elif running:
                        log_line(f"{cause}; the others save and stop")
                if stopping:
                    # Send SIGTERM again and again, because a job ignores it at first.
                    for entry in running:
                        entry.process.terminate()
        finally:
            for entry in running:  # after a double Ctrl-C, or a bug here
                entry.process.kill()
                entry.process.join()
        if signals.stop_requested():
            raise signals.Stopped
    if cause and not keep_going:
        raise UserError(cause)
    return failures


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
    """Run a job. Called in the job's process."""
    os.setsid()  # Ctrl-C reaches only the program, which forwards it once
    os.environ.update(job.environment)
    os.environ[signals.PARENT] = str(os.getppid())
    keep_memory()
    # The fork server ends when no process holds this descriptor. Jobs close their copy, so that it
    # ends with the program.
    os.close(forkserver._forkserver._forkserver_alive_fd)
    # A job's data loaders use the default start method; otherwise semaphores are left behind.
    multiprocessing.set_start_method(None, force=True)
    with open(job.log, "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    def send(description: str, share: float) -> None:
        try:
            reports.send((description, share))
        except OSError:  # the program has died; the fork server may end seconds later
            signal.raise_signal(signal.SIGTERM)

    code = 1
    try:
        report_bars_to(send)
        with signals.watch():
            code = job.do() or (STOPPED if signals.stop_requested() else 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        signals.end_workers()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
