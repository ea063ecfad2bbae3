"""One part of a GPU run, first its checks, then its topic: python -m benchmarks.gpu.part NAME.

The checks are the functions test_* of a module in tests/gpu. They are called without pytest, since
container images of PyTorch do not have pytest. The options are the options of a topic; --quick is a
rehearsal on the CPU. NAME.json gets the results so far after each row.
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
CHECK = "check: "  # prefix of the names of rows that are checks, not measurements


class Part(NamedTuple):
    """A part of a GPU run.

    about: what it checks and measures. share: its share of the run's time, relative to other parts.
    checks: a module in tests/gpu. topic: a module in benchmarks. needs: the modules that the part
    imports in addition to torch.
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
        *("resume, reports, memory", 10, "test_runs"),
        needs=(*CAPTIONER, *IMAGES, "pydantic", "ruamel.yaml", "tensorboard"),
    ),
    "processes": Part("NCCL, FSDP2", 6, "test_processes", needs=CAPTIONER),
    "input": Part("prefetching, loaders", 6, "test_prefetching", "loader", IMAGES),
}


def checks_of(name: str, card: Card) -> topic.Cases:
    """{name in words: check} of a part. Each check returns a row with its notes."""

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
        CHECK + name.removeprefix("test_").replace("_", " "): functools.partial(run_check, test)
        for name, test in functions.items()
        if name.startswith("test_")
    }


def main(argv: Optional[Sequence[str]] = None) -> int:
    name, *rest = sys.argv[1:] if argv is None else argv
    options = topic.parse(rest, __doc__, ROUNDS)
    if options.quick:
        options.device, measure.START = torch.device("cpu"), "fork"
        # On a CPU, compilation would take longer than everything else.
        torch.compile = functools.partial(torch.compile, disable=True)
    elif not torch.cuda.is_available():
        raise SystemExit(NO_GPU)
    folder = options.output / name
    folder.mkdir(parents=True, exist_ok=True)
    cases = dict(checks_of(name, Card.here(options.quick, folder)))
    if PARTS[name].topic:
        cases.update(importlib.import_module(f"benchmarks.{PARTS[name].topic}").cases(options))
    topic.run(name, cases, options)  # NAME.json says which rows failed
    return 0


if __name__ == "__main__":
    sys.exit(main())
