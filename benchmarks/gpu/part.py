"""Runs the checks, then the benchmark of a part of a GPU run: python -m benchmarks.gpu.part NAME.

The checks are the functions test_* of a module in tests/gpu. They are called without pytest, since
container images of PyTorch do not have pytest. The benchmark is a topic, see `benchmarks.topic`.
The options are those of `benchmarks.topic.parse`; with --quick everything runs on the CPU in tiny
sizes. After each row, all results so far are written to NAME.json.
"""

import functools
import importlib
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch

from benchmarks import measure, topic
from benchmarks.gpu.card import Card

CAPTIONER = ("torchvision", "timm", "transformers", "huggingface_hub", "filelock", "safetensors")
IMAGES = ("numpy", "PIL", "tqdm", "torchvision")
NO_GPU = "there is no CUDA GPU that torch can use; scripts/gpu.sh --rehearse runs on the CPU"
ROUNDS = 5
CHECK = "check: "  # prefix of the names of rows that are checks, not measurements


class Part(NamedTuple):
    """A part of a GPU run.

    about: what it checks and measures. share: its weight when the remaining time is divided among
    the remaining parts. checks: a module in tests/gpu, "" for none. topic: a module in benchmarks,
    "" for none. needs: the modules that the part imports in addition to torch.
    """

    about: str
    share: float
    checks: str = ""
    topic: str = ""
    needs: tuple[str, ...] = ()


PARTS = {
    "ceilings": Part("the speed of the card", 4, topic="device"),
    "objective": Part("losses, gradients, their time", 12, "test_objective", "objective"),
    "captioning": Part(
        "tokens, captions per second", 40, "test_captioning", "captioning", (*CAPTIONER, *IMAGES)
    ),
    "training": Part("steps, images per second", 22, "test_training", "training", CAPTIONER),
    "runs": Part(
        "resume, reports, memory",
        10,
        "test_runs",
        needs=(*CAPTIONER, *IMAGES, "pydantic", "ruamel.yaml", "tensorboard"),
    ),
    "processes": Part("NCCL, FSDP2", 6, "test_processes", needs=CAPTIONER),
    "input": Part("prefetching, loaders", 6, "test_prefetching", "loader", IMAGES),
}


def checks_of(name: str, card: Card) -> topic.Cases:
    """The checks of a part, by name in words. Calling one returns a row, {"notes": [...]}."""

    def run_check(test: Any) -> dict[str, Any]:
        card.notes.clear()
        test(card)
        return {"notes": [*card.notes]}

    module = PARTS[name].checks
    if not module:
        return {}
    # tests/ has no __init__.py, and an installed package may have the name `tests`.
    package = sys.modules["tests"] = types.ModuleType("tests")
    package.__path__ = [str(Path(__file__).resolve().parents[2] / "tests")]
    functions = vars(importlib.import_module(f"tests.gpu.{module}"))
    return {
        CHECK + test.removeprefix("test_").replace("_", " "): functools.partial(run_check, function)
        for test, function in functions.items()
        if test.startswith("test_")
    }


def main(argv: Optional[Sequence[str]] = None) -> int:
    name, *rest = sys.argv[1:] if argv is None else argv
    options = topic.parse(rest, __doc__, ROUNDS)
    if options.quick:
        options.device = torch.device("cpu")
        measure.START = "fork"  # faster; a rehearsal's memory need not be exact
        # On a CPU, compilation would take longer than everything else.
        torch.compile = functools.partial(torch.compile, disable=True)
    elif not torch.cuda.is_available():
        raise SystemExit(NO_GPU)
    folder = options.output / name
    folder.mkdir(parents=True, exist_ok=True)
    cases = dict(checks_of(name, Card.here(options.quick, folder)))
    if PARTS[name].topic:
        cases.update(importlib.import_module(f"benchmarks.{PARTS[name].topic}").cases(options))
    topic.run(name, cases, options)
    return 0  # even if rows failed; NAME.json says which


if __name__ == "__main__":
    sys.exit(main())
