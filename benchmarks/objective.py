"""Measures losses and gradients from hidden states, compared with losses on full logits.

    bash scripts/benchmark.sh objective [--quick] [--against FOLDER]

All contenders get hidden states (B, N, D) and a head (V, D), and compute the loss and all
gradients. "naive" is the definition on full logits. The cross-entropies of libraries take part in
the rows of MLE, SMILE and their mixture; where the head has a bias and labels are smoothed, as in
BLIP, they ignore both. With --against, the package `smile` of another checkout is the peer.
"""

import argparse
import contextlib
import functools
import importlib
import sys
from pathlib import Path
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.captioners import SMOOTHING
from benchmarks.measure import Cases, Row, Work, compare
from benchmarks.training import MIXTURE
from smile import Objective
from smile.alternatives import ALTERNATIVES

ROUNDS = 5
MAIN = {"MLE": "mle", "SMILE": "smile", "0.01 MLE + 0.99 SMILE": MIXTURE}
OBJECTIVES = {
    **MAIN,
    "reverse subsetting": "reverse",
    "random subsetting": "random",
    **{name: name for name in ALTERNATIVES},
    "selective_eos": {"selective_eos": {"eos_token_id": 2}},
}


# B captions, N tokens a caption, V words, width D, and label smoothing. BLIP alone smooths labels
# and has a bias; the others are language models, the large ones on a GPU.
Sizes = tuple[int, int, int, int, float]
TINY, BLIP = (2, 5, 50, 8, SMOOTHING), (32, 20, 30524, 768, SMOOTHING)
USUAL, LARGE = (8, 32, 151936, 896, 0.0), ((32, 20, 262144, 768, 0.0), (2, 512, 262144, 768, 0.0))
# Computes a loss from hidden states (B, N, D), head (V, D), bias (V,) or None, and labels (B, N).
Loss = Callable[..., Tensor]


def package_of(folder: Path) -> Any:
    """Import the package `smile` of the checkout `folder` beside ours."""

    def take_out():
        return {x: sys.modules.pop(x) for x in [*sys.modules] if x.partition(".")[0] == "smile"}

    ours = take_out()
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("smile")
    finally:
        sys.path.remove(str(folder))
        take_out()
        sys.modules.update(ours)


def library_losses(device: torch.device) -> dict[str, Loss]:
    """Return the cross-entropies of the installed libraries. They ignore the bias."""
    losses = {"F.cross_entropy": lambda h, w, y: F.cross_entropy(F.linear(h, w), y)}
    if hasattr(F, "linear_cross_entropy"):  # torch 2.13
        losses["F.linear_cross_entropy"] = F.linear_cross_entropy
    with contextlib.suppress(ImportError):
        from cut_cross_entropy import linear_cross_entropy

        impl = "cce" if device.type == "cuda" else "torch_compile"
        losses["cut-cross-entropy"] = functools.partial(linear_cross_entropy, impl=impl)
    if device.type == "cuda":
        with contextlib.suppress(ImportError):
            from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

            losses["Liger"] = liger_fused_linear_cross_entropy

    def flattened(loss):
        return lambda h, w, _, y: loss(h.flatten(0, 1), w, y.flatten())

    return {name: flattened(loss) for name, loss in losses.items()}


def our_losses(name: str, smoothing: float, against: Any = None) -> dict[str, Loss]:
    """Return the contenders for an objective of OBJECTIVES without those of libraries.

    against: a checkout whose package takes part, unless it lacks the objective.
    """

    def from_hidden(objective):
        return lambda h, w, b, y: objective.from_hidden(h, w, b, y).loss

    objective = Objective(OBJECTIVES[name], smoothing)
    contenders = {
        "from hidden states": from_hidden(objective),
        "naive": lambda h, w, b, y: objective(F.linear(h, w, b), y).loss,
    }
    if against:
        with contextlib.suppress(ValueError):
            peer = package_of(against).Objective(OBJECTIVES[name], smoothing)
            contenders[f"that of {against}"] = from_hidden(peer)
    return contenders


@functools.lru_cache(1)
def random_inputs(sizes: Sizes, device: torch.device) -> tuple[tuple[Any, ...], Tensor]:
    """Return hidden states, head and bias, which require gradients, and labels; always the same.

    The bias is None without label smoothing.
    """
    (B, N, V, D, smoothing), generator = sizes, torch.Generator().manual_seed(0)
    hidden, head, bias = (torch.randn(x, generator=generator) for x in ((B, N, D), (V, D), (V,)))
    labels = torch.randint(V, (B, N), generator=generator)
    hidden, head, bias = (x.to(device).requires_grad_() for x in (hidden, head.mul_(D**-0.5), bias))
    return (hidden, head, bias if smoothing else None), labels.to(device)


def gradients(loss: Loss, sizes: Sizes, device: torch.device, bf16: bool = False) -> Work:
    """Return a work that computes a loss and its gradients, and returns them."""
    inputs, labels = random_inputs(sizes, device)
    leaves = [x for x in inputs if x is not None]

    def work():
        for leaf in leaves:
            leaf.grad = None
        torch.manual_seed(0)  # random subsetting samples words
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            value = loss(*inputs, labels)
        value.backward()
        return [value.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    return work


def cases(options: argparse.Namespace) -> Cases:
    """Return a case for each objective, size and precision."""

    def measure(name: str, sizes: Sizes, bf16: bool) -> Row:
        libraries = library_losses(options.device) if name in MAIN else {}
        contenders = our_losses(name, sizes[-1], options.against)
        peers = [*contenders][-1:] if options.against or not libraries else [*libraries]
        works = {
            contender: gradients(loss, sizes, options.device, bf16)
            for contender, loss in {**contenders, **libraries}.items()
        }
        return compare(works, peers, options.rounds)

    large = LARGE if options.device.type == "cuda" else ()
    return {
        f"{name}, {'B {}, N {}, V {:,}'.format(*sizes)}{', bf16' * bf16}": functools.partial(
            measure, name, sizes, bf16
        )
        for sizes in ([TINY] if options.quick else [BLIP, USUAL, *large])
        for bf16 in (False, True)
        for name in OBJECTIVES
    }
