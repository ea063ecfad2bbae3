"""Runs jobs in parallel processes, each with a log file.

A process is forked from multiprocessing's fork server, which has imported the jobs' modules and has
no threads. As a new program, each job would take three seconds of CPU time for imports.
"""

import multiprocessing
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line
from captioning.runtime.start import configure_process

STOPPED = 3  # exit code of a job that saved and stopped on request
_CONTEXT = multiprocessing.get_context("forkserver")
_ERROR = re.compile(r"(?:^|[\r\n])error: ([^\r\n]*)")


class Job(NamedTuple):
    """A job.

    - run: a picklable function that returns an exit code, or None for 0
    - log: the file to which the job's output is appended
    - environment: variables that are set besides those of this process
    """

    name: str
    run: Callable[[], Optional[int]]
    log: Path
    environment: Mapping[str, str] = {}


class Observer:
    """Receives the events of `run_jobs`. Subclasses show the events to the user."""

    def on_start(self, job: Job) -> None:
        """Called when a job has started. `job.environment` includes the slot's variables."""

    def on_end(self, name: str, reason: Optional[str]) -> None:
        """Called when the job `name` has ended. reason: why it failed; None if it succeeded.

        Not called for a job that was stopped on request, or killed by `run_jobs`.
        """

    def poll(self) -> None:
        """Called several times a second."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def start_server(modules: Sequence[str]) -> None:
    """Start the fork server, unless it runs. It imports the modules in the background.

    The server ignores signals, and so does a job until it handles them.
    """
    _CONTEXT.set_forkserver_preload(list(modules))
    with signals.watch():  # restores this process's handlers
        signals.ignore()
        forkserver.ensure_running()


def ranks_of(job: Job, count: int) -> list[Job]:
    """Return `count` copies of the job that form one process group on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    # Without this variable, gloo resolves the machine's host name, which can fail.
    group["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    return [
        job._replace(environment={**group, "RANK": rank, "LOCAL_RANK": rank})
        for rank in map(str, range(count))
    ]


def run_jobs(
    jobs: Sequence[Job],
    slots: Sequence[Mapping[str, str]],
    observer: Observer,
    keep_going: bool = False,
) -> dict[str, str]:
    """Run all jobs, one at a time in each slot; return {name: reason} of the failed jobs.

    slots: the environment variables of each slot, such as its GPU. keep_going: whether to start
    further jobs after a job has failed. If false, the other jobs are asked to save and stop, and
    UserError is raised with the reason of the failure. `start_server` has to be called before.

    If this process is asked to stop, starts no further jobs, waits until the running jobs have
    saved, then raises Stopped. Raises KeyboardInterrupt at once when Ctrl-C is pressed twice.
    """
    waiting, free_slots, running, failures = list(jobs), list(slots), [], {}
    stopping = None  # why the running jobs have been asked to stop
    with signals.watch():
        try:
            while running or waiting:
                while waiting and free_slots:
                    running.append(_RunningJob(waiting.pop(0), free_slots.pop(0)))
                    observer.on_start(running[-1].job)
                connection.wait([each.process.sentinel for each in running], 0.1)
                for each in [each for each in running if each.process.exitcode is not None]:
                    running.remove(each)
                    free_slots.append(each.slot)
                    requested = stopping or signals.stop_requested()
                    if requested and each.process.exitcode == STOPPED:
                        continue
                    if reason := each.reason():
                        failures[each.job.name] = reason
                    observer.on_end(each.job.name, reason)
                observer.poll()
                if not stopping:
                    if failures and not keep_going:
                        stopping = " failed: ".join(next(iter(failures.items())))
                    elif signals.stop_requested():
                        stopping = f"stopping by {signals.stop_requested()}"
                    if stopping and running:
                        log_line(f"{stopping}; the running jobs save and stop")
                if stopping:
                    waiting.clear()
                    # In every round, because a job that has just started ignores the signal.
                    for each in running:
                        each.process.terminate()
        finally:
            for each in running:  # after a second Ctrl-C or an error
                each.process.kill()
                each.process.join()
        signals.raise_if_requested()
    if stopping:
        raise UserError(stopping)
    return failures


class _RunningJob:
    def __init__(self, job: Job, slot: Mapping[str, str]):
        self.job = job._replace(environment={**job.environment, **slot})
        self.slot = slot
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "ab") as log:
            self.log_offset = log.tell()
        environment = {**os.environ, **self.job.environment}
        self.process = _CONTEXT.Process(target=_be_job, args=(job, environment))
        self.process.start()

    def reason(self) -> Optional[str]:
        """Return why an ended job failed; None if the job succeeded.

        The reason is the job's last error line or, without one, its exit code.
        """
        code, log = self.process.exitcode, self.job.log
        errors = _ERROR.findall(log.read_bytes()[self.log_offset :].decode(errors="replace"))
        errors.insert(0, f"it ended with exit code {code}; its last lines are in {log}")
        return errors[-1] if code else None


def _be_job(job: Job, environment: Mapping[str, str]) -> None:
    """Run a job and exit with its exit code. Called in the job's process."""
    os.setsid()  # so that Ctrl-C reaches only the main program, which sends SIGTERM to the jobs
    os.environ.update(environment, **{signals.LAUNCHER_VARIABLE: str(os.getppid())})
    configure_process()
    # The fork server ends when no process holds this descriptor. Jobs close their copy, so that
    # the fork server ends with the main program.
    os.close(forkserver._forkserver._forkserver_alive_fd)
    # Let the job's data loaders use the default start method: otherwise they leak semaphores.
    multiprocessing.set_start_method(None, force=True)
    with open(job.log, "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    with signals.watch():
        try:
            code = job.run() or (STOPPED if signals.stop_requested() else 0)
        finally:
            signals.end_workers()
    sys.exit(code)
