"""The fused objective from hidden states, compared with head, loss and backward on full logits.

    bash scripts/benchmark.sh objective [--quick]

All contenders get hidden states (B, N, D) and a head (V, D), and compute the loss and all
gradients. Memory is the memory of one call without the gradients. In the rows "beside other
libraries", the peers are cross-entropies of other libraries; there the head has no bias, and labels
are not smoothed.
"""

import argparse
import contextlib
import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.captioners import SMOOTHING
from benchmarks.measure import Work, compare, peak_memory
from benchmarks.topic import Cases, program
from smile import Objective

MIXTURE = {"mle": 0.01, "smile": 0.99}
OBJECTIVES = {
    "SMILE": "smile",
    "0.01 MLE + 0.99 SMILE": MIXTURE,
    "MLE": "mle",
    "reverse subsetting": "reverse",
    "random subsetting": "random",
}
MAIN = ("SMILE", "0.01 MLE + 0.99 SMILE")
OURS = {"our MLE": "mle", "our 0.01 MLE + 0.99 SMILE": MIXTURE, "our SMILE": "smile"}
DEFINED = ("naive", "cross-entropy")  # computed on full logits
BF16 = torch.bfloat16
CPU = torch.device("cpu")


class Sizes(NamedTuple):
    """B captions, N tokens per caption, V words in the vocabulary, width D."""

    B: int
    N: int
    V: int
    D: int = 768

    def __str__(self) -> str:
        return f"B {self.B}, N {self.N}, V {self.V:,}"


USUAL, TINY = Sizes(32, 20, 30524), Sizes(2, 5, 50, 8)
# Fewer captions if the logits of "naive" would not fit in memory.
GROWTH = [
    *(Sizes(32, 20, V) for V in (131072, 262144)),
    *(Sizes(2048 // N, N, 30524) for N in (64, 512)),
    Sizes(2, 512, 262144),
]
LANGUAGE_MODEL = Sizes(8, 32, 151936, 896)  # the head of a small language model


class Problem:
    """Hidden states, labels and a head with gradients. The same sizes give the same values."""

    def __init__(self, sizes: Sizes, device: torch.device = CPU, dtype: torch.dtype = torch.float):
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        B, N, V, D = sizes
        values = (normal(B, N, D), normal(V, D).mul_(D**-0.5), normal(V))
        self.inputs = tuple(x.to(device, dtype).requires_grad_() for x in values)
        self.labels = torch.randint(V, (B, N), generator=generator).to(device)

    def work(self, contender: str, spec: Union[str, dict, None], autocast: bool = False) -> Work:
        """A `benchmarks.measure.Work` that computes loss and gradients.

        spec: the objective. With None, `contender` is from `libraries` or OURS, and there is no
        bias and no label smoothing.
        """
        hidden, weight, bias = self.inputs
        if spec is None:
            bias = None
        objective = Objective(spec or OURS.get(contender, "mle"), SMOOTHING if spec else 0.0)
        theirs = {} if contender in OURS else libraries(hidden.device)

        def loss() -> Tensor:
            if contender in theirs:
                return theirs[contender](hidden.flatten(0, 1), weight, self.labels.flatten())
            if contender not in DEFINED:
                return objective.from_hidden(hidden, weight, bias, self.labels).loss
            logits = F.linear(hidden, weight, bias)
            if contender == "cross-entropy":
                return F.cross_entropy(logits.flatten(0, 1), self.labels.flatten())
            return objective(logits, self.labels).loss

        def call() -> tuple[Tensor, ...]:
            for tensor in self.inputs:
                tensor.grad = None
            torch.manual_seed(0)  # random subsetting samples words
            with torch.autocast(hidden.device.type, BF16, enabled=autocast):
                found = loss()
            found.backward()
            return (found.detach(), *(x.grad for x in self.inputs if x.grad is not None))

        return call


def libraries(device: torch.device = CPU) -> dict[str, Callable]:
    """Cross-entropies of hidden states (M, D), a head (V, D) and labels (M,)."""
    found = {"F.cross_entropy": lambda h, w, labels: F.cross_entropy(F.linear(h, w), labels)}
    if hasattr(F, "linear_cross_entropy"):  # torch 2.13
        found["F.linear_cross_entropy"] = F.linear_cross_entropy
    with contextlib.suppress(ImportError):
        from cut_cross_entropy import linear_cross_entropy

        way = "cce" if device.type == "cuda" else "torch_compile"
        found[f"cut-cross-entropy, {way}"] = lambda *given: linear_cross_entropy(*given, impl=way)
    if device.type == "cuda":
        with contextlib.suppress(ImportError):
            from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

            found["Liger"] = lambda *given: liger_fused_linear_cross_entropy(*given)
    return found


def build(contender: str, spec: Union[str, dict, None], sizes: Sizes, autocast: bool) -> Work:
    """The work of one contender on the CPU. First runs a tiny work to load the libraries."""
    Problem(TINY).work(contender, spec, autocast)()
    return Problem(sizes).work(contender, spec, autocast)


def cases(options: argparse.Namespace) -> Cases:
    """Rows of all objectives in fp32 and bf16, of growth with V and N, and of other libraries."""
    device, found = options.device, {}

    def row(
        spec: Optional[Any], sizes: Sizes, dtype: torch.dtype = torch.float, autocast: bool = False
    ) -> dict[str, Any]:
        problem = Problem(sizes, device, dtype)
        if spec is None:
            names, peers = [*libraries(device), *OURS], list(libraries(device))
        else:
            peers = [DEFINED["mle" in spec]]
            names = ["from hidden states", *DEFINED[: 1 + ("mle" in spec)]]
        memory = None
        if device.type == "cpu":
            memory = {who: peak_memory(build, who, spec, sizes, autocast) for who in names}
        works = {who: problem.work(who, spec, autocast) for who in names}
        gradients = sum(x.nbytes for x in problem.inputs[: 2 if spec is None else 3])
        more = {"memory": memory, "outputs": gradients, "sizes": sizes._asdict()}
        return compare(works, peers, options.rounds, **more)

    def add(name: str, *case: Any) -> None:
        found[name] = functools.partial(row, *case)

    usual = TINY if options.quick else USUAL
    for name in MAIN if options.quick else OBJECTIVES:
        add(name, OBJECTIVES[name], usual)
    add("beside other libraries", None, usual)
    if options.quick:
        return found
    for name in MAIN:
        add(f"{name}, bf16", OBJECTIVES[name], usual, torch.float, True)
    for sizes, name in itertools.product(GROWTH, MAIN):
        add(f"{name}, {sizes}", OBJECTIVES[name], sizes)
    for dtype in (torch.float, *([BF16] if device.type == "cuda" else [])):
        for sizes in (*GROWTH, LANGUAGE_MODEL) if device.type == "cuda" else (LANGUAGE_MODEL,):
            add(f"beside other libraries, {str(dtype)[6:]}, {sizes}", None, sizes, dtype)
    return found


main = program("objective", __doc__, 5, cases)

if __name__ == "__main__":
    sys.exit(main())
