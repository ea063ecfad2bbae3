"""Runs a topic as a program: parses its options, measures its rows, prints and writes them.

A topic is a module `benchmarks/<topic>.py`. Its function `cases(options)` returns {name: function};
each function measures one row. Its `main` is made by `program`.
"""

import argparse
import importlib.metadata
import platform
import subprocess
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import torch

from benchmarks.measure import one_line
from captioning.files.writing import write_json
from captioning.runtime.job_runner import cores

LIBRARIES = ("torch", "torchvision", "timm", "transformers")
OUTPUT = Path(__file__).resolve().parent.parent / "output" / "benchmarks"
Cases = Mapping[str, Callable[[], dict[str, Any]]]


def program(
    topic: str, description: str, rounds: int, cases: Callable[[argparse.Namespace], Cases]
) -> Callable[[Optional[Sequence[str]]], int]:
    """Return the `main` of a topic. `main` takes a command line and returns an exit code."""

    def main(argv: Optional[Sequence[str]] = None) -> int:
        options = parse(argv, description, rounds)
        return run(topic, cases(options), options)

    return main


def parse(argv: Optional[Sequence[str]], description: str, rounds: int) -> argparse.Namespace:
    """The options of all topics: quick, rounds, device, output.

    rounds: the default of --rounds without --quick; with --quick it is 1.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="tiny sizes and one round")
    parser.add_argument("--rounds", type=int, help=f"rounds of each row (default {rounds})")
    parser.add_argument("--device", type=torch.device, help="default: a GPU if there is one")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the JSON file")
    options = parser.parse_args(argv)
    options.rounds = options.rounds or (1 if options.quick else rounds)
    options.device = options.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return options


def run(topic: str, cases: Cases, options: argparse.Namespace) -> int:
    """Measure and print each case; write all rows so far and the machine to <topic>.json.

    A failed case does not stop other cases. Returns 1 if a case failed.
    """
    content = {
        "topic": topic,
        "quick": options.quick,
        "rounds": options.rounds,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "planned": list(cases),
        "rows": [],
    }
    print(f"{topic}: " + ", ".join(f"{key} {value}" for key, value in content["machine"].items()))
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{topic}.json"
    for name, measure in cases.items():
        try:
            entry = {"name": name, **measure()}
        except Exception as problem:
            traceback.print_exc()
            entry = {"name": name, "error": one_line(problem)}
        content["rows"].append(entry)
        write_json(content, path)  # atomic, since gpu.sh may kill a part at any time
        print("\n".join(lines_of(entry)), flush=True)
    print(path)
    return int(any("error" in entry for entry in content["rows"]))


def machine() -> dict[str, Any]:
    """The machine: processor, cores, GPU if any, torch's threads, and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    gpu = {"gpu": "none"}
    if torch.cuda.is_available():
        driver = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found = subprocess.run(driver, capture_output=True, text=True).stdout.split()
        gpu = {"gpu": torch.cuda.get_device_name(), "driver": (found or ["unknown"])[0]}
    return {
        "cpu": next(names, platform.machine()),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        **gpu,
        "python": platform.python_version(),
        **{name: _version(name) for name in LIBRARIES},
    }


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "none"


HEADER = ("median, ms", "a second", "times peer", "spread", "peak, MB", "of peer's")


def lines_of(entry: Mapping[str, Any]) -> list[str]:
    """A row as text: its name, a line per contender, notes, and failed contenders."""
    table = [["", *HEADER]]
    table += [[name, *_cells(entry, v)] for name, v in entry.get("contenders", {}).items()]
    failed = {"": entry["error"]} if "error" in entry else entry.get("failed", {})
    return [
        "",
        entry["name"],
        *(f"  {line}" for line in aligned(table)),
        *(f"  {note}" for note in entry.get("notes", ())),
        *(f"  {name:{bool(name) * 20}}FAILED: {why}" for name, why in failed.items()),
    ]


def _cells(entry: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = values["spread"]
    memory = "peak_bytes" in values
    return (
        f"{values['median'] * 1000:.1f}",
        f"{values['rate']:.2f} {entry['item']}" if "rate" in values else "",
        f"{values['ratio']:.2f}",
        f"{low:.2f}-{high:.2f}",
        f"{values['peak_bytes'] / 2**20:.1f}" if memory else "",
        f"{values['memory_ratio']:.3f}" if memory else "",
    )


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Format a header and rows: first column left-aligned, empty columns left out."""
    used = [column for column in zip(*table) if any(column[1:])]
    widths = [max(map(len, column)) for column in used]
    return [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in zip(*used)
    ]
