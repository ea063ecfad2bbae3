"""The measurements of all benchmarks: contenders take turns in one run, and all times are kept.

A row compares contenders that do the same work. One contender is the peer; the other contenders are
compared with it. A contender's work is a function without arguments, whose calls are measured.
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
    fresh: Sequence[Any] = (),
    outputs: int = 0,
    **facts: Any,
) -> dict[str, Any]:
    """Measure `works` in turn and return their row.

    The peer is the fastest of `peers` that runs or, if none of them runs, the fastest contender.
    Speed-ups are ratios of medians; their spread is the smallest and largest ratio of a round. Each
    work is called once before the measurements. If this call fails, the work is left out, and the
    row says why. Raises RuntimeError if no work runs.

    items: what a call produces, such as (2, "captions").
    fresh: (build, *arguments), for which `build(contender, *arguments)` returns a contender's work.
    On a CPU, its peak memory is measured in a new process; on a GPU, memory is always measured.
    outputs: bytes of a contender's result, subtracted from its memory. facts: further entries.
    """
    failed, memory, seconds = {}, {}, {}
    for contender, work in works.items():
        try:
            work()
            if torch.cuda.is_initialized():
                memory[contender] = _growth_on_gpu(work)
            elif fresh:
                memory[contender] = peak_memory(fresh[0], contender, *fresh[1:])
            seconds[contender] = []
        except Exception as problem:
            failed[contender] = one_line(problem)
    ours_failed = not failed.keys() <= set(peers)
    if not seconds:
        raise RuntimeError(f"no contender ran: {failed}")
    for _ in range(rounds):  # in turn, so that other load affects all contenders alike
        for contender, times in seconds.items():
            times.append(timed(works[contender]))
    medians = {contender: statistics.median(times) for contender, times in seconds.items()}
    peer = min([each for each in peers if each in seconds] or seconds, key=medians.__getitem__)
    contenders = {}
    for contender, times in seconds.items():
        paired = [a / b for a, b in zip(seconds[peer], times)]
        entry: dict[str, Any] = {"median": medians[contender], "times": times}
        entry["ratio"] = medians[peer] / medians[contender]
        entry["spread"] = [min(paired), max(paired)]
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
        **facts,
    }


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


def one_line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"


def peak_memory(build: Callable[..., Work], *arguments: Any) -> int:
    """How far, in bytes, the peak memory during one call of a work is above the memory before it.

    A new process calls `build(*arguments)` to get the work, returns free memory to the system, and
    then measures one call of the work. `build` has to be a module's function, and the arguments
    picklable. Exceptions of `build` and of the work are raised here.
    """
    # The server of new processes has imported the module, but has computed nothing.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([sys.modules[build.__module__].__spec__.name])
    with ProcessPoolExecutor(1, context) as new:
        return new.submit(_growth, torch.get_num_threads(), build, arguments).result()


def _growth(threads: int, build: Callable[..., Work], arguments: tuple) -> int:
    keep_memory()
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
