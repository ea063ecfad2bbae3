"""Loss and gradients from hidden states beside the cross-entropies of other libraries."""

import itertools
import statistics
from collections.abc import Mapping
from typing import Any, Callable

import torch

from benchmarks.cross_entropies import libraries
from benchmarks.gpu.card import Card
from benchmarks.gpu.ceilings import DTYPES
from benchmarks.gpu.contenders import tried
from benchmarks.measure import alternate, row
from benchmarks.objective import OURS, TINY, Problem, Sizes, without_bias

WORDS = (30_524, 131_072, 262_144)
CAPTIONS = ((32, 20), (32, 64), (16, 512))  # 640 to 8,192 tokens
WIDTH = 768
ROUNDS = 10


def rows(card: Card) -> Mapping[str, Callable[[], dict[str, Any]]]:
    if card.tiny:
        return {"fp32, tiny": lambda: beside_libraries(card, "fp32", TINY)}
    sizes = [Sizes(B, N, V, WIDTH) for (B, N), V in itertools.product(CAPTIONS, WORDS)]
    cases = itertools.product(("bf16", "fp32"), sizes)
    return {
        f"{precision}, {each}": lambda p=precision, s=each: beside_libraries(card, p, s)
        for precision, each in cases
    }


def beside_libraries(card: Card, precision: str, sizes: Sizes) -> dict[str, Any]:
    """One row, of a head in that precision; the fastest of the others is the peer.

    Memory is what a call needs beyond the gradients.
    """
    problem = Problem(sizes, card.device, DTYPES[precision])
    names = [*libraries(), *OURS]
    works, memory, failed = tried({name: without_bias(name, problem) for name in names})
    gradients = sum(x.numel() * x.element_size() for x in (problem.hidden, problem.weight))
    memory = {name: max(0, grown - gradients) for name, grown in memory.items()}
    seconds = alternate(works, 1 if card.tiny else ROUNDS)
    others = [name for name in libraries() if name in works]
    fastest = min(others, key=lambda each: statistics.median(seconds[each]))
    phases = {name: needed(OURS[name], precision, sizes) for name in OURS}
    facts = {"failed": failed, "phases": phases, "sizes": sizes._asdict(), "precision": precision}
    return row(f"{precision}, {sizes}", seconds, fastest, memory, **facts)


def needed(spec: Any, precision: str, sizes: Sizes) -> list[dict[str, Any]]:
    """The phases of an objective, see `floors`: three products for each position that needs the
    whole vocabulary, the weight read once, its gradient written once. SMILE's own few are left out.
    """
    B, N, V, D = sizes
    positions = B * N if "mle" in spec else B
    width = torch.empty((), dtype=DTYPES[precision]).element_size()
    flops = {precision: 6 * positions * V * D}
    return [{"flops": flops, "bytes": width * (2 * V * D + 2 * B * N * D)}]
