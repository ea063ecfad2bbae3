"""How every benchmark measures: alternately, with all times kept, and memory in fresh processes.

A topic is a module `benchmarks/<topic>.py` whose `main` is the `program` of its `measure`. A row
compares contenders that do the same work; one is the peer that the others are measured against.
"""

import argparse
import ctypes
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Callable, Optional

import torch

LIBRARIES = ("torch", "torchvision", "timm", "transformers")
OUTPUT = Path(__file__).resolve().parent.parent / "output" / "benchmarks"
Work = Callable[[], Any]


def program(topic: str, description: str, rounds: int, measure: Callable) -> Callable:
    """What runs a topic: `report` of `measure(quick, rounds)`, given a command line or none."""

    def main(argv: Optional[Sequence[str]] = None) -> None:
        arguments = parse(argv, description, rounds)
        report(topic, measure(arguments.quick, arguments.rounds), arguments)

    return main


def parse(argv: Optional[Sequence[str]], description: str, rounds: int) -> argparse.Namespace:
    """The options that every topic has: quick, rounds (one where quick), output."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="tiny sizes and one round")
    parser.add_argument("--rounds", type=int, help=f"rounds of each row (default {rounds})")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the JSON file")
    arguments = parser.parse_args(argv)
    arguments.rounds = arguments.rounds or (1 if arguments.quick else rounds)
    return arguments


def alternate(contenders: Mapping[str, Work], rounds: int, warmup: int = 1) -> dict[str, list]:
    """Seconds of each contender in each round, all of them called in turn in every round.

    What else the machine does thus falls on all alike. The first `warmup` rounds do not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for index in range(warmup + rounds):
        for name, work in contenders.items():
            elapsed = timed(work)
            if index >= warmup:
                seconds[name].append(elapsed)
    return seconds


def timed(work: Work) -> float:
    """Seconds of one call, the device's queue included."""
    _synchronise()
    start = time.perf_counter()
    work()
    _synchronise()
    return time.perf_counter() - start


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_memory(build: Callable[..., Work], *arguments: Any) -> int:
    """By how many bytes one call of `build(*arguments)`'s result raises the memory of a process.

    The process is a fresh one. Its memory counts from the moment that the work is built, memory
    that an allocator holds free given back; the work is called once, without a warm-up. `build`
    must be a module's function, and it and its arguments picklable; what it raises is raised here.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_growth, torch.get_num_threads(), build, arguments).result()


def _growth(threads: int, build: Callable[..., Work], arguments: tuple) -> int:
    torch.set_num_threads(threads)
    return growth(build(*arguments))


def growth(work: Work) -> int:
    """By how many bytes one call raises the memory of this process, on a GPU that of the device."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        _synchronise()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is held now
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def _resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def row(
    name: str,
    seconds: Mapping[str, Sequence[float]],
    peer: str,
    memory: Optional[Mapping[str, int]] = None,
    items: Optional[tuple[float, str]] = None,
    **facts: Any,
) -> dict[str, Any]:
    """One line of a result: medians of all contenders and how often faster they are than `peer`.

    seconds: as `alternate` returns them; memory: bytes; items: how many of what one call makes,
    such as (2, "captions"); facts: whatever else belongs in the JSON file. A ratio is that of the
    medians; its spread, the least and the largest ratio of one round.
    """
    contenders = {}
    reference = statistics.median(seconds[peer])
    for contender, times in seconds.items():
        median = statistics.median(times)
        paired = [a / b for a, b in zip(seconds[peer], times)]
        entry: dict[str, Any] = {"median": median, "times": list(times)}
        entry["ratio"], entry["spread"] = reference / median, [min(paired), max(paired)]
        if memory is not None:
            entry["peak_bytes"] = memory[contender]
            entry["memory_ratio"] = memory[contender] / max(memory[peer], 1)
        if items is not None:
            entry["rate"] = items[0] / median
        contenders[contender] = entry
    unit = {"items": items[0], "item": items[1]} if items else {}
    return {"name": name, "peer": peer, **unit, "contenders": contenders, **facts}


def machine() -> dict[str, Any]:
    """What is measured on: processor, cores, GPU if any, torch's threads, and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": next(names, platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
        **{name: _version(name) for name in LIBRARIES},
    }


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def report(topic: str, rows: Iterable[Mapping[str, Any]], arguments: argparse.Namespace) -> Path:
    """Print each row once it is measured, and write all so far, with the machine, to <topic>.json.

    `rows` may be an iterator that measures as it goes: a program that is stopped has kept what it
    had. A row's "note" is printed below it.
    """
    content = {
        "topic": topic,
        "quick": arguments.quick,
        "rounds": arguments.rounds,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "rows": [],
    }
    print(f"{topic}: " + ", ".join(f"{key} {value}" for key, value in content["machine"].items()))
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / f"{topic}.json"
    for entry in rows:
        content["rows"].append(entry)
        path.write_text(json.dumps(content, indent=1) + "\n")
        print("\n".join(_table(entry)), flush=True)
    print(path)
    return path


HEADER = ("median, ms", "a second", "times peer", "spread", "peak, MB", "of peer's")
NAME_WIDTH = 20


def _table(entry: Mapping[str, Any]) -> list[str]:
    """The row's name, a line for each contender below it, and the note."""
    lines = [HEADER, *(_cells(entry, values) for values in entry["contenders"].values())]
    used = [column for column in zip(*lines) if any(column[1:])]
    aligned = [[cell.rjust(max(map(len, column))) for cell in column] for column in used]
    names = [f"  {name:{NAME_WIDTH}}" for name in ("", *entry["contenders"])]
    text = ["  ".join(line) for line in zip(names, *aligned)]
    note = [f"  {entry['note']}"] if "note" in entry else []
    return ["", entry["name"], *text, *note]


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
