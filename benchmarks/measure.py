"""Measures the time and memory of contenders, which take turns in one run. All times are kept.

A row compares contenders, such as our captioner and transformers', that do the same work. Each
contender is given as a `Work`: a function without arguments, and its calls are measured. One
contender, the peer, is the reference with which the others are compared.
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
Cases = Mapping[str, Callable[[], dict[str, Any]]]  # see `benchmarks.topic`


def compare(
    works: Mapping[str, Work],
    peers: Sequence[str],
    rounds: int,
    items: Optional[tuple[float, str]] = None,
    builder: Optional[Callable[[str], Work]] = None,
    outputs: int = 0,
) -> dict[str, Any]:
    """Measure `works` in turn and return their row.

    works: {contender: work}. peers: the contenders that may be the peer. rounds: how often each
    work is timed. items: what one call produces, such as (2, "captions"). builder: called in a new
    process to measure memory on a CPU; maps a contender to its work, see `peak_memory`. Without
    `builder`, memory is measured only on a GPU. outputs: the bytes of a contender's result, which
    are subtracted from its memory.

    The row is a dict with the keys

    - peer: the fastest of `peers`; if all of them failed, the fastest contender
    - contenders: {contender: dict}, with the seconds of all rounds (`times`), their `median`, the
      peer's median / this median (`ratio`), [smallest, largest] ratio of a round (`spread`), and
      the measured memory (`peak_bytes`) and the `items` per second (`rate`, `unit`), if any
    - failed: {contender: error}. Each work is called once before the rounds, and is left out if
      this call fails
    - ours_failed: whether a contender failed that is not one of `peers`

    Raises RuntimeError if all works failed.
    """
    memory, failed = _warm_up(works, builder)
    seconds = {contender: [] for contender in works if contender not in failed}
    if not seconds:
        raise RuntimeError(f"no contender ran: {failed}")
    for _ in range(rounds):  # in turn, so that other load on the machine affects all alike
        for contender, times in seconds.items():
            times.append(measure_seconds(works[contender]))
    medians = {contender: statistics.median(times) for contender, times in seconds.items()}
    peer = min([name for name in peers if name in seconds] or seconds, key=medians.__getitem__)
    contenders = {}
    for contender, times in seconds.items():
        ratios = [a / b for a, b in zip(seconds[peer], times)]
        contenders[contender] = entry = {
            "median": medians[contender],
            "times": times,
            "ratio": medians[peer] / medians[contender],
            "spread": [min(ratios), max(ratios)],
        }
        if memory:
            entry["peak_bytes"] = max(0, memory[contender] - outputs)
        if items is not None:
            entry["rate"], entry["unit"] = items[0] / entry["median"], items[1]
    return {
        "peer": peer,
        "contenders": contenders,
        "failed": failed,
        "ours_failed": any(name not in peers for name in failed),
    }


def _warm_up(
    works: Mapping[str, Work], builder: Optional[Callable[[str], Work]]
) -> tuple[dict[str, int], dict[str, str]]:
    """Call each work and measure its memory. Return {contender: bytes} and {contender: error}."""
    memory, failed = {}, {}
    for contender, work in works.items():
        try:
            work()
            if torch.cuda.is_initialized():
                memory[contender] = _measure_growth_on_gpu(work)
            elif builder:
                memory[contender] = peak_memory(builder, contender)
        except Exception as error:
            failed[contender] = repr(error)[:300]
    return memory, failed


def measure_seconds(work: Work) -> float:
    """Return the seconds of one call, including the operations that the call queues on a GPU."""
    _synchronise()
    start = time.perf_counter()
    work()
    _synchronise()
    return time.perf_counter() - start


def _synchronise():
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak_memory(build: Callable[..., Work], *arguments: Any) -> int:
    """Return how much the memory of a process grows up to its peak during one call of a work.

    The result is in bytes. The process is new. It calls `build(*arguments)` to get the work,
    returns free memory to the system, and then measures one call of the work. `build` has to be a
    function of a module, or a `functools.partial` of one, and the arguments have to be picklable.
    Exceptions of `build` and of the work are raised here.
    """
    # The new process is forked from a server that has imported the module, but computed nothing.
    module = getattr(build, "func", build).__module__
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([sys.modules[module].__spec__.name])
    with ProcessPoolExecutor(1, context) as executor:
        return executor.submit(_measure_growth, torch.get_num_threads(), build, arguments).result()


def _measure_growth(num_threads: int, build: Callable[..., Work], arguments: tuple) -> int:
    """Compute the result of `peak_memory`. This is called in the new process."""
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
    """Return by how many bytes GPU memory grows up to its peak during one call of a work."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    _synchronise()
    return torch.cuda.max_memory_allocated() - before
