"""Kill, stop and starve runs for a given time, and count what they survived.

python -m tests.soak [--kills 100] [--seconds 900] [--disks 12] [--seed N]
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import signal

from tests.soak import disks
from tests.soak.disturbed import Disturbed


def soak(folder: Path, signals: tuple, kills: int, seconds: float, rng: random.Random) -> None:
    """Disturb runs of one process and of two in turn, at least so often and so long."""
    until = time.monotonic() + seconds
    parts = [Disturbed(folder / str(processes), processes, signals, rng) for processes in (1, 2)]
    while (
        time.monotonic() < until or sum(part.counts["killed by kill -9"] for part in parts) < kills
    ):
        for part in parts:
            part.disturb()
    for part in parts:
        part.finish()
        report(f"{folder.name}, {part.processes} process(es)", part.counts)


def report(title: str, counts: Mapping[str, float]) -> None:
    print(title, *(f"  {value:6}  {name}" for name, value in counts.items()), sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="so many by kill -9 (default 100)")
    parser.add_argument("--seconds", type=float, default=900, help="of kills and requests to stop")
    parser.add_argument("--disks", type=int, default=12, help="full disks of so many sizes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--folder", type=Path, help="for what is written (default: a new one)")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="smile-soak.", dir=given.folder))
    print(f"seed {given.seed}, in {folder}", flush=True)
    rng, kill = random.Random(given.seed), (signal.SIGKILL,)
    if given.kills:
        soak(folder / "kill -9", kill, given.kills, 0, rng)
    reason = disks.why_unmountable()
    if reason and given.disks:
        print(f"full and read-only disks: SKIPPED, {reason}")
    elif given.disks:
        report("full disks", disks.check_full_disks(folder / "full", given.disks))
        report("read-only disks", disks.check_read_only_disks(folder / "read_only"))
    if given.seconds:
        stops = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
        soak(folder / "kills and requests to stop", kill + stops, 0, given.seconds, rng)
    print("all promises were kept")


if __name__ == "__main__":
    main()
