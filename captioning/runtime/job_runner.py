"""Work of one program in processes side by side, which share its imports; each has a log.

They are forked from a process that has imported what they need and does nothing else, so that each
begins at once and no thread of the program's is forked.
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.program import FAILED
from captioning.runtime.progress import heard_by, say

STOPPED = 3  # exit code: asked to stop, it has saved
SECONDS_TO_SAVE = 60.0  # after which a job that was asked to stop is killed
_CONTEXT = multiprocessing.get_context("forkserver")


class Job(NamedTuple):
    """do: can be pickled, and returns an exit code, or None for 0; log: its output is added."""

    name: str
    do: Callable[[], Optional[int]]
    log: Path
    environment: Mapping[str, str] = {}


@dataclass(eq=False)
class _Running:
    job: Job
    process: multiprocessing.process.BaseProcess
    reports: connection.Connection
    log_began: int  # bytes of the log that are of earlier times
    hears: bool = False  # a request to stop: earlier it would die of it, and others wait for it
    asked: bool = False

    def listen(self, heard: Callable[[str, str, float], None]) -> None:
        with suppress(EOFError):
            while self.reports.poll():
                told = self.reports.recv()
                if told is None:
                    self.hears = True
                else:
                    heard(self.job.name, *told)

    def ask_to_stop(self) -> None:
        """Once, as soon as it hears."""
        if self.hears and not self.asked:
            self.process.terminate()  # SIGTERM
            self.asked = True


def cores() -> int:
    """Those that this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def prepare(modules: Sequence[str]) -> None:
    """Let the process from which jobs are forked begin to import these, beside what comes now."""
    _CONTEXT.set_forkserver_preload(["captioning.runtime.job_server", *modules])
    _begin_server()


def _begin_server() -> None:
    """Have the process that forks jobs, deaf to signals for all: it ends with this one."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in signals.SIGNALS}
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ranks_of(job: Job, count: int) -> list[Job]:
    """The job `count` times, as the ranks of one process group on this machine."""
    if count == 1:
        return [job]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    if sys.platform == "linux":  # else gloo asks for the machine's name, which not all can resolve
        group["GLOO_SOCKET_IFNAME"] = "lo"
    group["WORLD_SIZE"] = str(count)
    ranks = []
    for rank in map(str, range(count)):
        log = job.log if rank == "0" else job.log.with_suffix(f".rank{rank}{job.log.suffix}")
        own = {**group, "RANK": rank, "LOCAL_RANK": rank}
        ranks.append(job._replace(log=log, environment={**job.environment, **own}))
    return ranks


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    heard: Callable[[str, str, float], None],
    meanwhile: Callable[[], None],
) -> None:
    """Do all jobs, so many at once; where one fails the others are asked to save and end.

    Those that then take longer than SECONDS_TO_SAVE are killed.

    heard: is told a job's name, what its progress bar is called, and its share from 0 to 1.
    meanwhile: is called again and again. Raises UserError for a job that failed, Stopped when this
    process was asked to stop and all have saved, KeyboardInterrupt after Ctrl-C twice.
    """
    _begin_server()
    waiting, running = list(jobs), []
    failed: list[tuple[_Running, int]] = []
    ask_until = None  # by when those that were asked to stop must have ended
    with signals.watch():
        try:
            while running or (waiting and ask_until is None):
                while waiting and len(running) < at_once and ask_until is None:
                    running.append(_start(waiting.pop(0)))
                connection.wait([each.process.sentinel for each in running], 0.1)
                for each in list(running):
                    each.listen(heard)
                    code = each.process.exitcode
                    if code is not None:
                        running.remove(each)
                        each.reports.close()
                        of_itself = (
                            code == STOPPED and ask_until is None and not signals.stop_requested()
                        )
                        if code not in (0, STOPPED) or of_itself:
                            failed.append((each, code))
                meanwhile()
                if ask_until is None and (signals.stop_requested() or failed):
                    ask_until = time.monotonic() + SECONDS_TO_SAVE
                    if signals.stop_requested():
                        say(f"stopping by {signals.stop_requested()}: saving")
                if ask_until is not None:
                    for each in running:
                        each.ask_to_stop()
                    if running and time.monotonic() > ask_until:
                        names = ", ".join(dict.fromkeys(each.job.name for each in running))
                        say(f"killed, for want of an end within {SECONDS_TO_SAVE:g} s: {names}")
                        break
        finally:
            for each in running:  # Ctrl-C twice, one that hangs, or a bug here
                each.process.kill()
                each.process.join()
        if signals.stop_requested():
            raise signals.Stopped
    if failed:
        failed.sort(key=lambda pair: pair[1] != FAILED)  # it says why; others may have lost it
        raise UserError(_why(*failed[0]))


def why_failed(code: int, log: Path, log_began: int = 0) -> str:
    """The line in which a process said what is wrong, or how it ended.

    log_began: the bytes of the log that are of earlier times.
    """
    with open(log, "rb") as file:
        file.seek(log_began)
        lines = file.read().decode(errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if errors:
        return errors[-1]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"it ended with {how}; its last lines are in {log}"


def _why(run: _Running, code: int) -> str:
    if code == STOPPED:
        return f"{run.job.name} was stopped by another program; the same command goes on from here"
    reason = why_failed(code, run.job.log, run.log_began)
    return reason if code == FAILED else f"{run.job.name} failed: {reason}"


def _start(job: Job) -> _Running:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with open(job.log, "ab") as log:
        began = log.tell()
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_do, args=(job, theirs))
    process.start()
    theirs.close()
    return _Running(job, process, ours, began)


def _do(job: Job, reports: connection.Connection) -> None:
    """In the process of a job."""
    os.setsid()  # Ctrl-C is for the program, which passes it on once
    os.environ.update(job.environment)
    os.environ[signals.PARENT] = str(os.getppid())
    # It forks jobs and ends once nobody holds this: with the program, then, not with the last job.
    os.close(forkserver._forkserver._forkserver_alive_fd)
    # Data is loaded as in a program of its own, by processes that leave no semaphores behind.
    multiprocessing.set_start_method(None, force=True)
    with open(job.log, "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    code = 1
    try:
        with signals.watch(), heard_by(_sender(reports)):
            _send(reports, None)
            code = job.do() or 0
            code = code or (STOPPED if signals.stop_requested() else 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        signals.end_workers()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _sender(reports: connection.Connection) -> Callable[[str, float], None]:
    return lambda description, share: _send(reports, (description, share))


def _send(reports: connection.Connection, told: Optional[tuple[str, float]]) -> None:
    """told: what a bar is called and its share; None for a job that hears a request to stop."""
    try:
        reports.send(told)
    except OSError:  # the program is gone; the process that forked this one can outlive it a while
        signals.launcher_died()
