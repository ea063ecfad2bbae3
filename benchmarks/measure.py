"""Measures the time and memory of contenders, which do the same work and take turns in one run.

A contender is given as a `Work`: a function without arguments, whose calls are measured. One
contender, the peer, is the reference for the others.
"""

import ctypes
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import torch

Work = Callable[[], Any]
Row = dict[str, Any]  # see `compare`
Cases = Mapping[str, Callable[[], Row]]  # the rows of a topic by name


def compare(
    works: Mapping[str, Work],
    peers: Sequence[str],
    rounds: int,
    items: tuple[int, str] = (1, "calls"),
) -> Row:
    """Measure `works` in turn and return their row.

    - works: {contender: work}.
    - peers: the contenders that may be the peer. The fastest is; if all of them failed, it is the
      fastest contender.
    - rounds: how often each work is timed.
    - items: what one call produces, such as (2, "captions").

    The row has the name of the `peer`, the `unit` of rates, the errors of the contenders that
    `failed` in their first calls, and by contender: the seconds of each round (`times`), their
    `median`, the peer's median / this median (`ratio`), the smallest and the largest ratio of a
    round (`spread`), the items per second (`rate`) and the bytes of `peak_growth` (`memory`).
    Raises RuntimeError if all contenders failed.
    """
    memory, failed = {}, {}
    for contender, work in works.items():
        try:
            work()
            memory[contender] = peak_growth(work)
        except Exception as error:
            failed[contender] = repr(error)[:300]
    if not memory:
        raise RuntimeError(f"no contender ran: {failed}")
    seconds = {contender: [] for contender in memory}
    for _ in range(rounds):  # in turn, so that other load on the machine affects all alike
        for contender, times in seconds.items():
            times.append(measure_seconds(works[contender]))
    medians = {contender: statistics.median(times) for contender, times in seconds.items()}
    peer = min([name for name in peers if name in seconds] or seconds, key=medians.__getitem__)
    contenders = {}
    for contender, times in seconds.items():
        ratios = [a / b for a, b in zip(seconds[peer], times)]
        contenders[contender] = {
            "times": times,
            "median": medians[contender],
            "ratio": medians[peer] / medians[contender],
            "spread": [min(ratios), max(ratios)],
            "rate": items[0] / medians[contender],
            "memory": memory[contender],
        }
    return {"peer": peer, "unit": items[1], "failed": failed, "contenders": contenders}


def measure_seconds(work: Work) -> float:
    """Return the seconds of one call, including the operations that the call queues on a GPU."""
    _synchronise()
    start = time.perf_counter()
    work()
    _synchronise()
    return time.perf_counter() - start


def peak_growth(work: Work) -> int:
    """Return by how many bytes memory grows up to its peak during one call of a work.

    What the work holds from an earlier call, such as gradients, does not count. On a CPU, memory is
    that of this process, without its children.
    """
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        _synchronise()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)  # returns memory that glibc keeps after it was freed
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current size
    before = _read_memory("VmRSS")
    work()
    return _read_memory("VmHWM") - before


def _read_memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _synchronise():
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
