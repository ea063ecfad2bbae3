"""Programs side by side, one a GPU or several on a CPU: stopped together, failing apart."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import torch

from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.job_runner import cores, why_failed
from captioning.runtime.progress import say


class Program(NamedTuple):
    """A program and the file that its output is added to."""

    name: str
    command: list[str]
    log: Path


class Running(NamedTuple):
    program: Program
    process: subprocess.Popen
    slot: dict[str, str]
    began: float
    log_began: int  # bytes of the log that are of earlier times


def slots(device: str, jobs: Optional[int]) -> list[dict[str, str]]:
    """The environment of each run that is to go at the same time as the others.

    One a GPU, of those that this process sees; without GPUs `jobs`, which share the cores. Raises
    UserError.
    """
    count = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if count:
        if jobs is not None and jobs > count:
            raise UserError(f"--jobs is {jobs}, but there are {count} GPUs: it is one run a GPU")
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = seen.split(",") if seen else [str(number) for number in range(count)]
        return [{"CUDA_VISIBLE_DEVICES": name} for name in names[: jobs or count]]
    jobs = jobs or 1
    if jobs > 1 and device.startswith("cuda"):
        raise UserError(f"device is {device}, one GPU: leave --jobs or device to their defaults")
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores() // jobs)))
    return [{"OMP_NUM_THREADS": threads} for _ in range(jobs)]


def run_programs(programs: Sequence[Program], free: Sequence[dict[str, str]]) -> dict[str, str]:
    """Run every program in the slots; why, by name, of those that failed, which ends no other.

    Raises Stopped when this process was asked to stop and all of them have ended for it, and
    KeyboardInterrupt at once where Ctrl-C was pressed twice.
    """
    waiting, free, failures = list(programs), list(free), {}
    running: list[Running] = []
    done, told, seconds = 0, None, []
    width = len(free)
    with signals.watch():
        try:
            while running or (waiting and not signals.stop_requested()):
                while waiting and free and not signals.stop_requested():
                    running.append(_start(waiting.pop(0), free.pop(0)))
                if told is None and (told := signals.stop_requested()):
                    say(f"stopping by {told}: waiting for {len(running)} runs to save")
                    for each in running:
                        each.process.send_signal(signal.SIGTERM)
                for each in [each for each in running if each.process.poll() is not None]:
                    running.remove(each)
                    free.append(each.slot)
                    done += 1
                    reason = _why_failed(each)
                    if told and reason:
                        continue  # it goes on another time
                    seconds.append(time.monotonic() - each.began)
                    outcome = f"done in {seconds[-1]:.0f} s"
                    if reason:
                        outcome = f"failed: {reason}"
                        failures[each.program.name] = reason
                    left = _left(seconds, len(programs) - done, width)
                    say(f"[{done}/{len(programs)}] {each.program.name}: {outcome}{left}")
                time.sleep(0.05)
        finally:
            for each in running:  # Ctrl-C twice, or a bug here
                each.process.kill()
                each.process.wait()
    if told:
        raise signals.Stopped
    return failures


def _start(program: Program, slot: dict[str, str]) -> Running:
    program.log.parent.mkdir(parents=True, exist_ok=True)
    with open(program.log, "ab") as log:
        began = log.tell()
        process = subprocess.Popen(
            program.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **slot, signals.PARENT: str(os.getpid())},
            start_new_session=True,  # Ctrl-C is for this process, which passes it on once
        )
    where = "".join(f" on GPU {value}" for key, value in slot.items() if key.startswith("CUDA"))
    say(f"{program.name}: begun{where}, see {program.log}")
    return Running(program, process, slot, time.monotonic(), began)


def _why_failed(run: Running) -> Optional[str]:
    """None for exit code 0, else the line in which it said what is wrong, or its exit code."""
    code = run.process.returncode
    if code == 0:
        return None
    return why_failed(code, run.program.log, run.log_began)


def _left(seconds: list[float], programs: int, width: int) -> str:
    if not programs:
        return ""
    minutes = sum(seconds) / len(seconds) * programs / width / 60
    return f", about {max(1, round(minutes))} min to go"
