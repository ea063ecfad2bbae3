"""One part of a run: python -m benchmarks.gpu.part NAME FOLDER SECONDS [--rehearse].

Its checks and rows go to FOLDER/NAME.jsonl one by one, so that whatever ends it, those before stay.
"""

import argparse
import functools
import gc
import importlib
import json
import sys
import time
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

import torch

from benchmarks.gpu.card import Card
from benchmarks.gpu.parts import NO_GPU, PARTS, Part

TO_MEASURE = 0.9  # of the time: after it nothing is begun


def checks_of(part: Part) -> dict[str, Callable[[Card], None]]:
    """The tests of its modules, by what they say; see tests/gpu."""
    found = {}
    # A folder without __init__.py, whose name a package may have taken that is installed.
    ours = sys.modules["tests"] = types.ModuleType("tests")
    ours.__path__ = [str(Path(__file__).resolve().parents[2] / "tests")]
    for name in part.checks:
        module = importlib.import_module(f"tests.gpu.{name}")
        for each, test in vars(module).items():
            if each.startswith("test_"):
                found[each[len("test_") :].replace("_", " ")] = test
    return found


def rows_of(part: Part, card: Card) -> Mapping[str, Callable[[], dict[str, Any]]]:
    """What it measures, by the names of the rows."""
    if not part.measures:
        return {}
    return importlib.import_module(f"benchmarks.gpu.{part.name}").rows(card)


class Record:
    """Lines of JSON: a plan, then one for each that is done."""

    def __init__(self, path: Path):
        self.path = path
        path.write_text("")

    def add(self, **values: Any) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(values) + "\n")


def run(part: Part, card: Card, record: Record) -> None:
    checks = checks_of(part)
    record.add(checks=list(checks))
    for name, check in checks.items():
        card.said.clear()
        error, seconds = attempt(lambda check=check: check(card), name)
        record.add(check=name, error=error, seconds=seconds, said=list(card.said))
    rows = rows_of(part, card)
    record.add(rows=list(rows))
    for name, measure in rows.items():
        if card.left() <= 0:
            break
        row: dict[str, Any] = {}
        error, seconds = attempt(lambda row=row, measure=measure: row.update(measure()), name)
        record.add(row=name, error=error, seconds=seconds, **row)
    record.add(done=True)


def attempt(work: Callable[[], Any], name: str) -> tuple[str, float]:
    """The error of a call in one line, "" without one, and the seconds that it took."""
    print(f"== {name}", flush=True)
    start, error = time.monotonic(), ""
    try:
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception as problem:
        traceback.print_exc()
        error = said_of(problem)
    gc.collect()
    if torch.cuda.is_available() and not error:
        torch.cuda.empty_cache()
    return error, round(time.monotonic() - start, 3)


def said_of(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.part", description=__doc__)
    parser.add_argument("name", choices=[part.name for part in PARTS])
    parser.add_argument("folder", type=Path)
    parser.add_argument("seconds", type=float, help="that it may take")
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    ends = time.monotonic() + arguments.seconds * TO_MEASURE
    part = next(part for part in PARTS if part.name == arguments.name)
    folder = arguments.folder / part.name
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.rehearse:  # compiling takes a CPU longer than all the rest
        torch.compile = functools.partial(torch.compile, disable=True)
    elif not torch.cuda.is_available():
        raise SystemExit(NO_GPU)
    record = Record(arguments.folder / f"{part.name}.jsonl")
    run(part, Card.here(arguments.rehearse, folder, ends), record)


if __name__ == "__main__":
    main()
