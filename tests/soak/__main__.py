"""Kill, stop and starve runs for a given time, and count what they survived.

python -m tests.soak [--kills 100] [--seconds 900] [--disks 12] [--seed N]
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import signal

from tests.soak import disks
from tests.soak.disturbed import STOP_SIGNALS, BrokenPromise, Disturbed


def soak_with_kills(folder: Path, count: int, rng: random.Random) -> None:
    """kill -9 at random moments, in turn in a run of one process and of two."""
    for processes in (1, 2):
        part = Disturbed(folder / f"killed{processes}", processes, (signal.SIGKILL,), rng)
        while part.counts["killed by kill -9"] < (count + 2 - processes) // 2:
            part.disturb()
        part.finish()
        report(f"kill -9, {processes} process(es)", part.counts)


def soak_with_all_signals(folder: Path, seconds: float, rng: random.Random) -> None:
    """Kills and requests to stop, for so long."""
    until = time.monotonic() + seconds
    signals = (signal.SIGKILL, *STOP_SIGNALS)
    parts = [Disturbed(folder / f"mixed{n}", n, signals, rng) for n in (1, 2)]
    while time.monotonic() < until:
        for part in parts:
            part.disturb()
    for number, part in enumerate(parts, 1):
        part.finish()
        report(f"{seconds:g} s of kills and requests to stop, {number} process(es)", part.counts)


def report(title: str, counts: Mapping[str, float]) -> None:
    print(title, *(f"  {value:6}  {name}" for name, value in counts.items()), sep="\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="so many by kill -9 (default 100)")
    parser.add_argument("--seconds", type=float, default=900, help="of kills and requests to stop")
    parser.add_argument("--disks", type=int, default=12, help="full disks of so many sizes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--folder", type=Path, help="for what is written (default: a new one)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="smile-soak.", dir=arguments.folder))
    print(f"seed {arguments.seed}, in {folder}", flush=True)
    rng = random.Random(arguments.seed)
    try:
        if arguments.kills:
            soak_with_kills(folder, arguments.kills, rng)
        reason = disks.why_unmountable()
        if reason and arguments.disks:
            print(f"full and read-only disks: SKIPPED, {reason}")
        elif arguments.disks:
            (folder / "full").mkdir()
            report("full disks", disks.check_full_disks(folder / "full", arguments.disks))
            (folder / "read_only").mkdir()
            report("read-only disks", disks.check_read_only_disks(folder / "read_only"))
        if arguments.seconds:
            soak_with_all_signals(folder, arguments.seconds, rng)
    except BrokenPromise as broken:
        print(f"BROKEN: {broken}", file=sys.stderr)
        return 1
    print("all promises were kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
