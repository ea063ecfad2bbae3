"""One part of a run, its checks and then its topic: python -m benchmarks.gpu.part NAME [options].

The checks are the functions test_* of a module of tests/gpu, called without pytest, which images
lack. Options are those of a topic; --quick is a rehearsal. NAME.json holds what is done so far.
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
NO_GPU = "there is no CUDA GPU that torch can use; --rehearse does the same on the CPU"
ROUNDS = 5
CHECK = "check: "  # before the names of rows that are no measurement


class Part(NamedTuple):
    """share: of the time, relative to the others'. checks: a module of tests/gpu. topic: a module
    of benchmarks. needs: the modules that it imports besides torch."""

    about: str
    share: float
    checks: str = ""
    topic: str = ""
    needs: tuple[str, ...] = ()


PARTS = {
    "ceilings": Part("the speed of the card", 4, topic="device"),
    "objective": Part("losses, gradients, their time", 12, "test_objective", "objective"),
    "captioning": Part(
        "tokens, captions a second", 40, "test_captioning", "captioning", (*CAPTIONER, *IMAGES)
    ),
    "training": Part("steps, images a second", 22, "test_training", "training", CAPTIONER),
    "runs": Part(
        *("resume, reports, memory", 10, "test_runs"),
        needs=(*CAPTIONER, *IMAGES, "pydantic", "ruamel.yaml", "tensorboard"),
    ),
    "processes": Part("NCCL, FSDP2", 6, "test_processes", needs=CAPTIONER),
    "input": Part("prefetching, loaders", 6, "test_prefetching", "loader", IMAGES),
}


def checks_of(name: str, card: Card) -> topic.Cases:
    """The checks of a part by their names in words; each returns a row with its notes."""

    def row(test: Any) -> dict[str, Any]:
        card.notes.clear()
        test(card)
        return {"notes": [*card.notes]}

    module = PARTS[name].checks
    if not module:
        return {}
    # tests/ has no __init__.py, and an installed package may have taken its name.
    package = sys.modules["tests"] = types.ModuleType("tests")
    package.__path__ = [str(Path(__file__).resolve().parents[2] / "tests")]
    found = vars(importlib.import_module(f"tests.gpu.{module}"))
    return {
        CHECK + each.removeprefix("test_").replace("_", " "): functools.partial(row, test)
        for each, test in found.items()
        if each.startswith("test_")
    }


def main(argv: Optional[Sequence[str]] = None) -> int:
    name, *rest = sys.argv[1:] if argv is None else argv
    options = topic.parse(rest, __doc__, ROUNDS)
    if options.quick:
        options.device, measure.START = torch.device("cpu"), "fork"
        # Compiling takes a CPU longer than all the rest.
        torch.compile = functools.partial(torch.compile, disable=True)
    elif not torch.cuda.is_available():
        raise SystemExit(NO_GPU)
    folder = options.output / name
    folder.mkdir(parents=True, exist_ok=True)
    cases = dict(checks_of(name, Card.here(options.quick, folder)))
    if PARTS[name].topic:
        cases.update(importlib.import_module(f"benchmarks.{PARTS[name].topic}").cases(options))
    topic.run(name, cases, options)  # its report says which rows failed
    return 0


if __name__ == "__main__":
    sys.exit(main())
