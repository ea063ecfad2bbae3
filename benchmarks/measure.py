"""Measures the time and memory of contenders, which take turns in one run. All times are kept.

A row compares contenders that do the same work. One contender is the peer; the other contenders are
compared with it. A contender's `Work` is a function without arguments, whose calls are measured.
"""

import ctypes
import multiprocessing
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Callable, Optional

import torch

from captioning.runtime.start import keep_memory

Work = Callable[[], Any]


def compare(
    works: Mapping[str, Work],
    peers: Sequence[str],
    rounds: int,
    items: Optional[tuple[float, str]] = None,
    builder: Sequence[Any] = (),
    outputs: int = 0,
) -> dict[str, Any]:
    """Measure `works` in turn and return their row.

    The peer is the fastest of `peers` that runs or, if none of them runs, the fastest contender.
    `ratio` is the speed-up, the peer's median time / the contender's; `spread` is its smallest and
    largest value in a round. Each work is first called once. If this call fails, the work is left
    out, and `failed` has the reason; `ours_failed` says whether one that is not of `peers` failed.
    Raises RuntimeError if no work runs.

    works: {contender: work}. items: what a call produces, such as (2, "captions"), from which
    `rate`, per second, is computed. builder: (build, *arguments). `build(contender, *arguments)`
    returns a contender's work, whose peak memory is measured in a new process on a CPU; on a GPU,
    memory is always measured. outputs: bytes of a contender's result, subtracted from its memory.
    """
    failed, memory, seconds = {}, {}, {}
    for contender, work in works.items():
        try:
            work()
            if torch.cuda.is_initialized():
                memory[contender] = _measure_growth_on_gpu(work)
            elif builder:
                memory[contender] = peak_memory(builder[0], contender, *builder[1:])
            seconds[contender] = []
        except Exception as error:
            failed[contender] = repr(error)[:300]
    ours_failed = not failed.keys() <= set(peers)
    if not seconds:
        raise RuntimeError(f"no contender ran: {failed}")
    for _ in range(rounds):  # in turn, so that other load affects all contenders alike
        for contender, times in seconds.items():
            times.append(measure_seconds(works[contender]))
    medians = {contender: statistics.median(times) for contender, times in seconds.items()}
    peer = min([name for name in peers if name in seconds] or seconds, key=medians.__getitem__)
    contenders = {}
    for contender, times in seconds.items():
        ratios = [a / b for a, b in zip(seconds[peer], times)]
        entry: dict[str, Any] = {"median": medians[contender], "times": times}
        entry["ratio"] = medians[peer] / medians[contender]
        entry["spread"] = [min(ratios), max(ratios)]
        if memory:
            entry["peak_bytes"] = max(0, memory[contender] - outputs)
        if items is not None:
            entry["rate"], entry["unit"] = items[0] / medians[contender], items[1]
        contenders[contender] = entry
    return {
        "peer": peer,
        "contenders": contenders,
        "failed": failed,
        "ours_failed": ours_failed,
    }


def measure_seconds(work: Work) -> float:
    """Return the seconds of one call, including the operations that it queues on a GPU."""
    _synchronise()
    start = time.perf_counter()
    work()
    _synchronise()
    return time.perf_counter() - start


def _synchronise() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak_memory(build: Callable[..., Work], *arguments: Any) -> int:
    """Return by how many bytes the memory grows from before one call of a work to its peak.

    A new process calls `build(*arguments)` to get the work, returns free memory to the system, and
    then measures one call of the work. `build` has to be a module's function, and the arguments
    picklable. Exceptions of `build` and of the work are raised here.
    """
    # The new process is forked from a server that has imported the module, but computed nothing.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([sys.modules[build.__module__].__spec__.name])
    with ProcessPoolExecutor(1, context) as executor:
        return executor.submit(_measure_growth, torch.get_num_threads(), build, arguments).result()


def _measure_growth(num_threads: int, build: Callable[..., Work], arguments: tuple) -> int:
    """Return what `peak_memory` returns. Called in the new process."""
    keep_memory()
    torch.set_num_threads(num_threads)
    work = build(*arguments)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current size
    before = _read_memory("VmRSS")
    work()
    return _read_memory("VmHWM") - before


def _read_memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _measure_growth_on_gpu(work: Work) -> int:
    """Return by how many bytes GPU memory grows from before one call of a work to its peak."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    _synchronise()
    return torch.cuda.max_memory_allocated() - before
