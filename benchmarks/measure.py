"""The measurements of all benchmarks: contenders take turns in one run, and all times are kept.

A row compares contenders that do the same work. One contender is the peer; the other contenders are
compared with it. A contender's work is a function without arguments, whose calls are measured.
"""

import ctypes
import multiprocessing
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Callable, Optional

import torch

Work = Callable[[], Any]
START = "spawn"  # start method of processes that measure memory; "fork" is faster but less exact


def compare(
    works: Mapping[str, Work],
    peers: Sequence[str],
    rounds: int,
    items: Optional[tuple[float, str]] = None,
    memory: Optional[Mapping[str, int]] = None,
    outputs: int = 0,
    **facts: Any,
) -> dict[str, Any]:
    """Measure `works` in turn and return their row.

    The peer is the fastest of `peers` that runs or, if none of them runs, the fastest contender.
    Each work is called once before the measurements, as a warm-up. If this call fails, the work is
    left out, and the row says why. Raises RuntimeError if no work runs.

    items: what a call produces, such as (2, "captions"). memory: peak bytes of each contender; if
    None, they are measured here, but only if CUDA is initialised in this process. outputs: bytes of
    a contender's result, subtracted from its memory. facts: further entries of the row.
    """
    failed, runnable = {}, {}
    for contender, work in works.items():
        try:
            work()
            runnable[contender] = work
        except Exception as problem:
            failed[contender] = one_line(problem)
    if not runnable:
        raise RuntimeError(f"no contender ran: {failed}")
    if memory is None and torch.cuda.is_initialized():
        memory = {contender: _growth_on_gpu(work) for contender, work in runnable.items()}
    if memory is not None:
        memory = {contender: max(0, memory[contender] - outputs) for contender in runnable}
    seconds = alternate(runnable, rounds)
    medians = {contender: statistics.median(times) for contender, times in seconds.items()}
    peer = min([each for each in peers if each in runnable] or runnable, key=medians.__getitem__)
    return row(seconds, peer, memory, items, failed=failed, **facts)


def alternate(contenders: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender in each round. All contenders are called in turn in every round.

    Because of this order, other load on the machine affects all contenders alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            seconds[name].append(timed(work))
    return seconds


def timed(work: Work) -> float:
    """Seconds of one call, including the device's queued work."""
    _synchronise()
    start = time.perf_counter()
    work()
    _synchronise()
    return time.perf_counter() - start


def _synchronise() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def row(
    seconds: Mapping[str, Sequence[float]],
    peer: str,
    memory: Optional[Mapping[str, int]] = None,
    items: Optional[tuple[float, str]] = None,
    **facts: Any,
) -> dict[str, Any]:
    """A row from the times of `alternate`: medians, and how much faster than `peer`.

    The speed-up is the ratio of medians. Its spread: the smallest and the largest of the rounds'
    ratios.
    """
    contenders = {}
    reference = statistics.median(seconds[peer])
    for contender, times in seconds.items():
        median = statistics.median(times)
        paired = [a / b for a, b in zip(seconds[peer], times)]
        entry: dict[str, Any] = {"median": median, "times": list(times)}
        entry["ratio"], entry["spread"] = reference / median, [min(paired), max(paired)]
        if memory is not None:
            entry["peak_bytes"] = memory[contender]
            entry["memory_ratio"] = memory[contender] / max(memory[peer], 1)
        if items is not None:
            entry["rate"] = items[0] / median
        contenders[contender] = entry
    unit = {"items": items[0], "item": items[1]} if items else {}
    return {"peer": peer, **unit, "contenders": contenders, **facts}


def one_line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"


def peak_memory(build: Callable[..., Work], *arguments: Any) -> int:
    """How far, in bytes, the peak memory during one call of a work is above the memory before it.

    A new process calls `build(*arguments)` to get the work, returns free memory to the system, and
    then measures one call of the work. `build` has to be a module's function, and the arguments
    picklable. Exceptions of `build` and of the work are raised here.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context(START)) as fresh:
        return fresh.submit(_growth, torch.get_num_threads(), build, arguments).result()


def _growth(threads: int, build: Callable[..., Work], arguments: tuple) -> int:
    torch.set_num_threads(threads)
    work = build(*arguments)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current size
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _growth_on_gpu(work: Work) -> int:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    _synchronise()
    return torch.cuda.max_memory_allocated() - before
