"""A row of a table: contenders that are tried first, so that one that fails costs itself alone."""

import gc
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import torch

from benchmarks.gpu.part import said_of
from benchmarks.measure import Work, alternate, growth, row

ROUNDS, WARMUP = 5, 1


def tried(works: Mapping[str, Work]) -> tuple[dict[str, Work], dict[str, int], dict[str, str]]:
    """Those that run, by how much a second call of each raises memory, and why others failed.

    The first call is what compiles.
    """
    good, memory, failed = {}, {}, {}
    for name, work in works.items():
        try:
            work()
            memory[name] = growth(work)
            good[name] = work
        except Exception as problem:
            failed[name] = said_of(problem)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return good, memory, failed


def compare(
    name: str,
    works: Mapping[str, Work],
    peers: Sequence[str],
    rounds: int,
    items: Optional[tuple[float, str]] = None,
    **facts: Any,
) -> dict[str, Any]:
    """The row of `works`, beside the first of `peers` that ran. Raises RuntimeError without any."""
    good, memory, failed = tried(works)
    found = [peer for peer in peers if peer in good]
    if not found:
        raise RuntimeError(f"no peer ran: {failed}")
    seconds = alternate(good, rounds, WARMUP)
    return row(name, seconds, found[0], memory, items, failed=failed, **facts)
