"""Check and measure on a GPU, a part after the other: bash scripts/gpu.sh; see there."""

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from benchmarks.gpu import surroundings
from benchmarks.gpu.parts import NO_GPU, PARTS
from benchmarks.gpu.summary import Summary

NOTHING_DONE = 2  # exit status
BEGINNING_S = 5.0  # that a process needs before it can do anything; less time is not worth it


def parse(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="gpu.sh", description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels of what is missing")
    parser.add_argument("--out", type=Path, help="the folder to write to (output/gpu)")
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--minutes", type=float, default=8.0, help="for all of it (8)")
    arguments = parser.parse_args(argv)
    if arguments.wheels and not arguments.wheels.is_dir():
        parser.error(f"--wheels: {arguments.wheels} is no folder")
    arguments.out = (arguments.out or surroundings.REPOSITORY / "output" / "gpu").resolve()
    return arguments


def main(argv: Optional[Sequence[str]] = None) -> int:
    ends = time.monotonic()
    arguments = parse(argv)
    ends += arguments.minutes * 60
    out = arguments.out
    (out / "parts").mkdir(parents=True, exist_ok=True)
    absent = surroundings.missing()
    problems = []
    if arguments.wheels:
        problems = surroundings.install(arguments.wheels, out / "packages", list(absent))
        absent = surroundings.missing()
    summary = Summary(out, arguments.rehearse, arguments.minutes, absent, problems)
    # What was measured means little without what the card can do.
    only = {"ceilings", *(arguments.only or [part.name for part in PARTS])}
    chosen = [part for part in PARTS if part.name in only]
    variables = surroundings.variables(out, arguments.rehearse)
    try:
        for number, part in enumerate(chosen):
            lacking = [name for name, parts in absent.items() if part.name in parts]
            if lacking:
                summary.without(part, lacking)
                continue
            share = part.share / sum(other.share for other in chosen[number:])
            limit = (ends - time.monotonic()) * share
            if limit < BEGINNING_S:
                summary.add(part, "there was no time left", 0.0)
                continue
            command = [sys.executable, "-m", "benchmarks.gpu.part", part.name, str(out / "parts")]
            command += [f"{limit:.0f}", *(["--rehearse"] if arguments.rehearse else [])]
            (out / "parts" / f"{part.name}.jsonl").unlink(missing_ok=True)  # an earlier run's
            start = time.monotonic()
            ended = run(command, variables, out / "parts" / f"{part.name}.log", limit)
            summary.add(part, ended, time.monotonic() - start)
            if NO_GPU in ended:
                return NOTHING_DONE
    except KeyboardInterrupt:
        summary.add(part, "interrupted", 0.0)
    summary.write(shlex.join(["bash", "scripts/gpu.sh", *(sys.argv[1:] if argv is None else argv)]))
    return summary.show()


def run(command: Sequence[str], variables: dict[str, str], log: Path, limit: float) -> str:
    """How a process ended, "" for well; it and all that it started are gone afterwards."""
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=surroundings.REPOSITORY,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"ended after {limit:.0f} s, its time"
        finally:
            _end_all(process)
    return "" if status == 0 else f"failed with {_named(status)}: {last_line(log)}"


def _end_all(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _named(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")[:300]


if __name__ == "__main__":
    sys.exit(main())
