"""Run a part's checks, then its benchmark: python -m benchmarks.checks PART [--quick].

The checks are the functions test_* of tests/gpu/test_PART.py. They are called without pytest,
because container images of PyTorch do not have pytest. The benchmark is the topic PART, see
`benchmarks.topic`; some parts have none. With --quick, the checks run on the CPU in tiny sizes.
"""

import functools
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch

from benchmarks import REPOSITORY, TOPICS, topic
from captioning.runtime.registry import load


@dataclass(eq=False)
class CheckContext:
    """The argument of each check.

    tiny: whether to use tiny sizes, on the CPU. folder: a folder for the files of checks. notes:
    lines that the check wants to be printed, such as measured errors.
    """

    tiny: bool
    folder: Path
    notes: list[str] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.tiny else "cuda:0")

    @property
    def on_gpu(self) -> bool:
        return not self.tiny

    def note(self, line: str) -> None:
        self.notes.append(line)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return |actual - expected| / |expected| with Euclidean norms, in float64.

    If a value is nan, the result is nan.
    """
    actual = actual.detach().double()
    expected = expected.detach().to(actual.device, torch.float64)
    return float((actual - expected).norm() / expected.norm())


def load_checks(part: str, context: CheckContext) -> dict[str, Any]:
    """Return {readable name: case} for the checks of a part.

    A case is a function that runs a check and returns a row: {"notes": [line, ...]}.
    """
    # tests/ has no __init__.py, so that another installed package `tests` could be imported
    # instead. Therefore a module `tests` with the right path is made here.
    package = sys.modules["tests"] = types.ModuleType("tests")
    package.__path__ = [str(REPOSITORY / "tests")]

    def run_check(test):
        context.notes.clear()
        test(context)
        return {"notes": [*context.notes]}

    return {
        name.replace("test_", "check: ", 1).replace("_", " "): functools.partial(run_check, test)
        for name, test in vars(load(f"tests.gpu.test_{part}")).items()
        if name.startswith("test_")
    }


def main(argv: Optional[Sequence[str]] = None) -> int:
    part, *arguments = sys.argv[1:] if argv is None else argv
    options = topic.parse_options(arguments, __doc__, rounds=5)
    folder = options.output / part
    folder.mkdir(parents=True, exist_ok=True)
    cases = load_checks(part, CheckContext(options.quick, folder))
    if part in TOPICS:
        cases.update(load(f"benchmarks.{part}").cases(options))
    return topic.run_topic(part, cases, options)


if __name__ == "__main__":
    sys.exit(main())
