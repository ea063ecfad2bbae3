"""Measure a topic of this project and its peers: python -m benchmarks TOPIC [--quick].

A topic is a module of this package. Its function `cases(options)` returns {title: case}. A case is
a function that returns a row, see `benchmarks.measure`. ROUNDS is the default of --rounds.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import importlib
import platform
import re
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import torch

from captioning.files.writing import write_json
from captioning.metrics.scoring import library_versions
from captioning.runtime.jobs import cores
from captioning.runtime.table import format_table

TOPICS = ("captioning", "decoding", "training", "objective", "loader")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measure each row, print it, and write all rows so far to TOPIC.json.

    Return the exit code: 1 if a row or a contender failed. The others still run.
    """
    parser = argparse.ArgumentParser("benchmark.sh", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("topic", choices=TOPICS)
    add("--quick", action="store_true", help="tiny sizes and one round")
    add("--rounds", type=int, help="how often each contender is timed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add("--device", type=torch.device, default=device, help="default: a GPU if there is one")
    add("--output", type=Path, default="output/benchmarks", help="folder of TOPIC.json")
    add("--against", type=Path, metavar="FOLDER", help="objective: a checkout with another smile/")
    options = parser.parse_args(argv)
    if options.against and not (options.against / "smile").is_dir():
        parser.error(f"{options.against} has no folder smile")
    topic = importlib.import_module(f"benchmarks.{options.topic}")
    options.rounds = options.rounds or (1 if options.quick else topic.ROUNDS)
    machine, rows = describe_machine(), []
    print(f"{options.topic}: {', '.join(f'{key} {value}' for key, value in machine.items())}")
    now, path = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), f"{options.topic}.json"
    content = {"time": now, "quick": options.quick, "machine": machine, "rows": rows}
    for title, case in topic.cases(options).items():
        try:
            row = case()
        except Exception as error:
            traceback.print_exc()
            row = {"unit": "", "failed": {"all": repr(error)[:300]}, "contenders": {}}
        rows.append({"title": title, **row})
        write_json(content, options.output / path)  # after each row: the program may be killed
        print(f"\n{title}\n{format_row(row)}", flush=True)
    failed = sum(bool(row["failed"]) for row in rows)
    print(f"\n{len(rows)} rows, {failed} failed: {options.output / path}")
    return int(failed > 0)


def describe_machine() -> dict[str, Any]:
    """Return {name: value} of the processor, cores, threads, GPU, and versions of libraries."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
        **library_versions("torch", "torchvision", "timm", "transformers"),
    }


def format_row(row: dict[str, Any]) -> str:
    """Return a table of a row's contenders, and a line for each that failed."""
    table = [("", "median, ms", "times peer", "spread", "memory, MB", f"{row['unit']} a second")]
    for name, entry in row["contenders"].items():
        numbers = entry["median"] * 1000, entry["ratio"], entry["memory"] / 2**20, entry["rate"]
        median, ratio, memory, rate = map("{:.2f}".format, numbers)
        spread = "-".join(f"{ratio:.2f}" for ratio in entry["spread"])
        table.append((name, median, ratio, spread, memory, rate))
    failures = [f"FAILED: {name}: {reason}" for name, reason in row["failed"].items()]
    return "\n".join([format_table(table), *failures])


if __name__ == "__main__":
    sys.exit(main())
