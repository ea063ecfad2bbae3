"""What the card can do: a large matrix product in each precision, a copy in its memory; and which
card it is."""

import platform
import shutil
import statistics
import subprocess
from collections.abc import Mapping
from typing import Any, Callable

import torch

from benchmarks.gpu.card import Card
from benchmarks.measure import machine, timed

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIDE, TINY_SIDE = 8192, 128  # of a matrix
BYTES, TINY_BYTES = 2**32, 2**20  # of a copy
CALLS = 10
COMPILERS = ("gcc", "clang", "cc")  # of which torch.compile needs one


def rows(card: Card) -> Mapping[str, Callable[[], dict[str, Any]]]:
    products = {
        f"product, {name}": lambda name=name: {"flops": {name: product_rate(card, DTYPES[name])}}
        for name in DTYPES
    }
    return {"card": lambda: {"machine": about()}, "copy": lambda: copy_rate(card), **products}


def product_rate(card: Card, dtype: torch.dtype) -> float:
    """FLOP/s of a product of two random square matrices; fp32 as torch has it by default."""
    side = TINY_SIDE if card.tiny else SIDE
    a, b = (torch.randn(side, side, device=card.device).to(dtype) for _ in range(2))
    return 2 * side**3 / median_of(lambda: a @ b)


def copy_rate(card: Card) -> dict[str, float]:
    """Bytes a second, those read and those written."""
    size = TINY_BYTES if card.tiny else BYTES
    source = torch.randint(256, (size,), dtype=torch.uint8, device=card.device)
    to = torch.empty_like(source)
    return {"bytes": 2 * size / median_of(lambda: to.copy_(source))}


def median_of(work: Callable[[], Any]) -> float:
    """Seconds of one of many calls in a row, the median of five such rows, after one that warms."""
    return (
        statistics.median([timed(lambda: [work() for _ in range(CALLS)]) for _ in range(6)][1:])
        / CALLS
    )


def about() -> dict[str, Any]:
    """The machine, the card, its driver, and the versions of what runs on it."""
    facts = {**machine(), "cuda": torch.version.cuda, "system": platform.release()}
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        facts["gpus"], facts["memory_bytes"] = torch.cuda.device_count(), found.total_memory
        facts["capability"] = [found.major, found.minor]
        facts["cudnn"] = torch.backends.cudnn.version()
        facts["nccl"] = (
            str(torch.cuda.nccl.version()) if torch.distributed.is_nccl_available() else ""
        )
        facts["driver"] = _driver()
        facts["c_compiler"] = next(filter(None, map(shutil.which, COMPILERS)), "none")
    return facts


def _driver() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return done.stdout.strip().partition("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return "unknown"
