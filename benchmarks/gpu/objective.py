"""Loss and gradients from hidden states beside the cross-entropies of other libraries."""

import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any, Callable

import torch

from benchmarks.cross_entropies import libraries
from benchmarks.gpu.card import Card
from benchmarks.gpu.ceilings import DTYPES
from benchmarks.gpu.contenders import compare, tried
from benchmarks.measure import Work, alternate, row
from benchmarks.objective import OURS, TINY, Problem, Sizes, without_bias
from smile import head

WORDS = (30_524, 131_072, 262_144)
CAPTIONS = ((32, 20), (32, 64), (16, 512))  # 640 to 8,192 tokens
WIDTH = 768
ROUNDS = 10


def rows(card: Card) -> Mapping[str, Callable[[], dict[str, Any]]]:
    if card.tiny:
        return {
            "fp32, tiny": lambda: beside_libraries(card, "fp32", TINY),
            "slices": lambda: slices(card, "our MLE", "fp32", TINY),
        }
    sizes = [Sizes(B, N, V, WIDTH) for (B, N), V in itertools.product(CAPTIONS, WORDS)]
    cases = itertools.product(("bf16", "fp32"), sizes)
    found = {
        f"{precision}, {each}": lambda p=precision, s=each: beside_libraries(card, p, s)
        for precision, each in cases
    }
    large = Sizes(16, 512, 131_072, WIDTH)
    for name in ("our MLE", "our SMILE"):
        found[f"slices, {name}"] = lambda name=name: slices(card, name, "bf16", large)
    return found


def beside_libraries(card: Card, precision: str, sizes: Sizes) -> dict[str, Any]:
    """One row, of a head in that precision; the fastest of the others is the peer, or, where the
    card has no room for any of them, of ours.

    Memory is what a call needs beyond the gradients.
    """
    problem = Problem(sizes, card.device, DTYPES[precision])
    names = [*libraries(), *OURS]
    works, memory, failed = tried({name: without_bias(name, problem) for name in names})
    gradients = sum(x.numel() * x.element_size() for x in (problem.hidden, problem.weight))
    memory = {name: max(0, grown - gradients) for name, grown in memory.items()}
    seconds = alternate(works, 1 if card.tiny else ROUNDS)
    others = [name for name in libraries() if name in works]
    fastest = min(others or works, key=lambda each: statistics.median(seconds[each]))
    phases = {name: needed(OURS[name], precision, sizes) for name in OURS}
    facts = {"failed": failed, "phases": phases, "sizes": sizes._asdict(), "precision": precision}
    return row(f"{precision}, {sizes}", seconds, fastest, memory, **facts)


def slices(card: Card, name: str, precision: str, sizes: Sizes) -> dict[str, Any]:
    """One row, for whoever tunes: other numbers of positions and of elements at a time."""
    problem, device = Problem(sizes, card.device, DTYPES[precision]), card.device.type
    usual = head.POSITIONS[device], head.ELEMENTS[device]

    def sliced(positions: int, elements: int) -> Work:
        def call() -> None:
            head.POSITIONS[device], head.ELEMENTS[device] = positions, elements
            try:
                without_bias(name, problem)()
            finally:
                head.POSITIONS[device], head.ELEMENTS[device] = usual

        return call

    works = {
        f"{int(usual[0] * p)} positions, 2**{int(math.log2(usual[1] * e))} elements": sliced(
            int(usual[0] * p), int(usual[1] * e)
        )
        for p, e in ((1, 1), (0.5, 1), (2, 1), (4, 1), (1, 0.25), (1, 4), (1, 16))
    }
    rounds = 1 if card.tiny else ROUNDS
    facts = {"sizes": sizes._asdict(), "precision": precision, "for_tuning": True}
    return compare(f"slices, {name}", works, [next(iter(works))], rounds, **facts)


def needed(spec: Any, precision: str, sizes: Sizes) -> list[dict[str, Any]]:
    """The phases of an objective, see `floors`: three products for each position that needs the
    whole vocabulary, the weight read once, its gradient written once. SMILE's own few are left out.
    """
    B, N, V, D = sizes
    positions = B * N if "mle" in spec else B
    width = torch.empty((), dtype=DTYPES[precision]).element_size()
    flops = {precision: 6 * positions * V * D}
    return [{"flops": flops, "bytes": width * (2 * V * D + 2 * B * N * D)}]
