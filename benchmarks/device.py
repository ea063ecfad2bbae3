"""The speed of the device: large matrix products in each precision, and a copy in its memory.

python -m benchmarks.device [--quick]
"""

import argparse
import functools
import sys
from typing import Any

import torch

from benchmarks.measure import Work, compare
from benchmarks.topic import Cases, program

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def cases(options: argparse.Namespace) -> Cases:
    """Products of square matrices, fp32 with torch's default settings, and a memory copy."""
    large = options.device.type == "cuda" and not options.quick
    side, size = (8192, 2**32) if large else (256, 2**20)

    def product(dtype: torch.dtype) -> Work:
        a, b = (torch.randn(side, side, device=options.device).to(dtype) for _ in range(2))
        return lambda: a @ b

    def products() -> dict[str, Any]:
        works = {name: product(dtype) for name, dtype in DTYPES.items()}
        return compare(works, ["fp32"], options.rounds, (2 * side**3 / 1e12, "TFLOP"))

    def copy() -> dict[str, Any]:
        source = torch.zeros(size, dtype=torch.uint8, device=options.device)
        work = functools.partial(torch.empty_like(source).copy_, source)
        # Each byte is read once and written once. The only contender is its own peer.
        return compare({"copy": work}, [], options.rounds, (2 * size / 1e12, "TB"))

    return {"product": products, "copy": copy}


main = program("device", __doc__, 10, cases)

if __name__ == "__main__":
    sys.exit(main())
