"""Measure the rows of a topic, print and write them: python -m benchmarks.topic TOPIC [--quick].

A topic is a module `benchmarks/TOPIC.py`. The module has a function `cases(options)`, which returns
{name: case}. A case is a function that measures and returns one row, see
`benchmarks.measure.compare`. The module's ROUNDS is the default of --rounds.
"""

import argparse
import platform
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import torch

from benchmarks import REPOSITORY
from benchmarks.measure import Cases
from captioning.files.writing import write_json
from captioning.metrics.scoring import library_versions
from captioning.runtime.jobs import cores
from captioning.runtime.registry import load
from captioning.runtime.start import keep_memory


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the topic that the first argument names. Return the exit code: 1 if a row failed."""
    name, *arguments = sys.argv[1:] if argv is None else argv
    topic = load(f"benchmarks.{name}")
    options = parse_options(arguments, topic.__doc__, topic.ROUNDS)
    return run_topic(name, topic.cases(options), options)


def parse_options(argv: Sequence[str], description: str, rounds: int) -> argparse.Namespace:
    """Return the options of topics: quick, rounds, device, output, and objective's against.

    description: the text of --help. rounds: the default of --rounds. With --quick, the default is
    1 instead.
    """
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--quick", action="store_true", help="tiny sizes and one round")
    add("--rounds", type=int, help=f"rounds of each row (default {rounds})")
    add("--device", type=torch.device, help="default: a GPU if there is one")
    add(
        "--output",
        type=Path,
        default=REPOSITORY / "output" / "benchmarks",
        help="folder of the JSON file",
    )
    add("--against", type=Path, metavar="FOLDER", help="objective: a checkout with another smile/")
    options = parser.parse_args(argv)
    if options.against and not (options.against / "smile").is_dir():
        parser.error(f"{options.against} has no folder smile")
    options.rounds = options.rounds or (1 if options.quick else rounds)
    options.device = options.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return options


def run_topic(topic: str, cases: Cases, options: argparse.Namespace) -> int:
    """Measure each case, print its row, and write all rows so far to <topic>.json.

    If a case fails, the other cases still run. Returns the exit code: 1 if a case failed or a row
    has `ours_failed`.
    """
    keep_memory()
    rows = []
    content = {
        "topic": topic,
        "quick": options.quick,
        "rounds": options.rounds,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": describe_machine(),
        "planned": list(cases),
        "rows": rows,
    }
    print(f"{topic}: " + ", ".join(f"{key} {value}" for key, value in content["machine"].items()))
    path = options.output / f"{topic}.json"
    for name, measure in cases.items():
        try:
            rows.append({"name": name, **measure()})
        except Exception as error:
            traceback.print_exc()
            rows.append({"name": name, "error": repr(error)[:300]})
        write_json(content, path)  # after each case, because the program may be killed
        print("\n".join(format_row(rows[-1])), flush=True)
    failed = sum("error" in row or row.get("ours_failed", False) for row in rows)
    print(f"\n{len(rows)} rows, {failed} failed: {path}")
    return int(failed > 0)


def describe_machine() -> dict[str, Any]:
    """Return {name: value} of the processor, cores, threads, GPU, and versions of libraries."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": next(names, platform.machine()),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
        **library_versions("torch", "torchvision", "timm", "transformers"),
    }


def format_row(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of text that show a row: name, contenders, notes and failures."""
    yield f"\n{row['name']}"
    if "contenders" in row:
        yield f"  {'':26} median, ms  times peer       spread  peak, MB   a second"
    for name, values in row.get("contenders", {}).items():
        spread = "-".join(f"{ratio:.2f}" for ratio in values["spread"])
        memory = f"{values['peak_bytes'] / 2**20:.1f}" if "peak_bytes" in values else ""
        rate = f"{values['rate']:10.2f} {values['unit']}" if "rate" in values else ""
        line = f"  {name:26} {values['median'] * 1000:10.1f} {values['ratio']:11.2f} {spread:>12}"
        yield f"{line} {memory:>9} {rate}".rstrip()
    yield from (f"  {note}" for note in row.get("notes", ()))
    yield from (f"  {name} FAILED: {reason}" for name, reason in row.get("failed", {}).items())
    if "error" in row:
        yield f"  FAILED: {row['error']}"


if __name__ == "__main__":
    sys.exit(main())
