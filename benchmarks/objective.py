"""The objective from hidden states beside the head, the loss and backward as they are defined.

    bash scripts/benchmark.sh objective [--quick]

Each contender is given hidden states (B, N, D) and a head (V, D), and makes the loss and the
gradients of all. Memory is what one call needs beyond the gradients, which every contender hands
out. The last rows have a head without bias and no label smoothing, and the cross-entropies of other
libraries beside ours; the fastest of those is the peer.
"""

import itertools
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.captioners import SMOOTHING
from benchmarks.cross_entropies import libraries
from benchmarks.measure import Work, alternate, peak_memory, program, row
from smile import Objective

MIXTURE = {"mle": 0.01, "smile": 0.99}
OBJECTIVES = {
    "SMILE": "smile",
    "MLE": "mle",
    "0.01 MLE + 0.99 SMILE": MIXTURE,
    "reverse subsetting": "reverse",
    "random subsetting": "random",
}
MAIN = ("SMILE", "0.01 MLE + 0.99 SMILE")
BF16 = torch.bfloat16


class Sizes(NamedTuple):
    """Captions, tokens of each, vocabulary, width."""

    B: int
    N: int
    V: int
    D: int = 768

    def __str__(self) -> str:
        return f"B {self.B}, N {self.N}, V {self.V:,}"


USUAL = Sizes(32, 20, 30524)
TINY = Sizes(2, 5, 50, 8)
# Fewer captions where the naive form's logits would not fit beside the rest.
GROWTH = [
    *(Sizes(32, 20, V) for V in (65536, 131072, 262144)),
    *(Sizes(2048 // N, N, 30524) for N in (64, 128, 256, 512)),
    Sizes(2, 512, 262144),
]
GROWTH_ROUNDS = 2
OURS = {"our MLE": "mle", "our 0.01 MLE + 0.99 SMILE": MIXTURE, "our SMILE": "smile"}
TODAY = Sizes(8, 32, 151936, 896)  # the head of a small language model of these years


class Problem:
    """Hidden states, labels and a head with gradients, always the same for the same sizes."""

    def __init__(
        self,
        sizes: Sizes,
        device: Union[str, torch.device] = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        B, N, V, D = sizes
        made = (normal(B, N, D), normal(V, D).mul_(D**-0.5), normal(V))
        self.inputs = tuple(x.to(device, dtype).requires_grad_() for x in made)
        self.hidden, self.weight, self.bias = self.inputs
        self.labels = torch.randint(V, (B, N), generator=generator).to(device)

    def loss(self, contender: str, objective: Objective) -> Tensor:
        torch.manual_seed(0)  # of the words that random subsetting draws
        if contender == "from hidden states":
            return objective.from_hidden(*self.inputs, self.labels).loss
        logits = F.linear(*self.inputs)
        if contender == "cross-entropy":
            return F.cross_entropy(logits.flatten(0, 1), self.labels.flatten())
        return objective(logits, self.labels).loss

    def work(self, contender: str, objective: Objective, autocast: bool) -> Work:
        def call() -> tuple[Tensor, ...]:
            for tensor in self.inputs:
                tensor.grad = None
            with torch.autocast(self.hidden.device.type, BF16, enabled=autocast):
                loss = self.loss(contender, objective)
            loss.backward()
            return (loss.detach(), *(tensor.grad for tensor in self.inputs))

        return call


def build(contender: str, spec: Union[str, dict], sizes: Sizes, autocast: bool) -> Work:
    """The work of one contender, after a tiny one for which the libraries are loaded."""
    objective = Objective(spec, SMOOTHING)
    Problem(TINY).work(contender, objective, autocast)()
    return Problem(sizes).work(contender, objective, autocast)


def compare(
    name: str, spec: Union[str, dict], sizes: Sizes, rounds: int, peer: str, autocast: bool = False
) -> dict[str, Any]:
    """One row; `peer` is what the others are measured against."""
    names = list(dict.fromkeys(["from hidden states", "naive", peer]))
    gradients = 4 * (sizes.B * sizes.N * sizes.D + sizes.V * (sizes.D + 1))
    memory = {
        contender: max(0, peak_memory(build, contender, spec, sizes, autocast) - gradients)
        for contender in names
    }
    problem, objective = Problem(sizes), Objective(spec, SMOOTHING)
    works = {contender: problem.work(contender, objective, autocast) for contender in names}
    seconds = alternate(works, rounds)
    facts = {"sizes": sizes._asdict(), "gradient_bytes": gradients, "autocast": autocast}
    return row(name, seconds, peer, memory, **facts)


def beside_libraries(name: str, sizes: Sizes, rounds: int) -> dict[str, Any]:
    """One row: MLE of other libraries and ours, the usual mixture and SMILE."""
    names = [*libraries(), *OURS]
    gradients = 4 * (sizes.B * sizes.N * sizes.D + sizes.V * sizes.D)
    memory = {each: max(0, peak_memory(step, each, sizes) - gradients) for each in names}
    seconds = alternate({each: step(each, sizes) for each in names}, rounds)
    fastest = min(libraries(), key=lambda each: statistics.median(seconds[each]))
    return row(name, seconds, fastest, memory, sizes=sizes._asdict(), gradient_bytes=gradients)


def step(contender: str, sizes: Sizes) -> Work:
    """Loss and gradients by one contender, which has been called once at a tiny size."""
    without_bias(contender, Problem(TINY))()
    return without_bias(contender, Problem(sizes))


def without_bias(contender: str, problem: Problem) -> Work:
    """Loss and gradients of hidden states and weight, by ours or another library's name."""
    hidden, weight, _ = problem.inputs
    objective = Objective(OURS.get(contender, "mle"))
    theirs = None if contender in OURS else libraries()[contender]

    def call() -> tuple[Tensor, ...]:
        hidden.grad = weight.grad = None
        if theirs is None:
            loss = objective.from_hidden(hidden, weight, None, problem.labels).loss
        else:
            loss = theirs(hidden.flatten(0, 1), weight, problem.labels.flatten())
        loss.backward()
        return loss.detach(), hidden.grad, weight.grad

    return call


def measure(quick: bool, rounds: int) -> Iterator[dict[str, Any]]:
    """Every row: each objective, the usual two in bf16, how those grow, and other libraries."""
    usual = TINY if quick else USUAL
    peers = {n: "cross-entropy" if "mle" in spec else "naive" for n, spec in OBJECTIVES.items()}
    for name in MAIN if quick else OBJECTIVES:
        yield compare(name, OBJECTIVES[name], usual, rounds, peers[name])
    yield beside_libraries("beside other libraries", usual, rounds)
    if quick:
        return
    for name in MAIN:
        bf16 = f"{name}, bf16"
        yield compare(bf16, OBJECTIVES[name], usual, rounds, peers[name], autocast=True)
    for sizes, name in itertools.product(GROWTH, MAIN):
        yield compare(f"{name}, {sizes}", OBJECTIVES[name], sizes, GROWTH_ROUNDS, "naive")
    yield beside_libraries(f"beside other libraries, {TODAY}", TODAY, GROWTH_ROUNDS)


main = program("objective", __doc__, 5, measure)

if __name__ == "__main__":
    main()
