"""Measures the fused objective from hidden states, compared with losses on full logits.

    bash scripts/benchmark.sh objective [--quick]

All contenders get hidden states (B, N, D) and a head (V, D), and compute the loss and all
gradients. Memory is the growth to the peak during one call, without the bytes of the gradients. In
the rows "beside other libraries", the peers are cross-entropies of other libraries, the head has no
bias, and labels are not smoothed.
"""

import argparse
import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Cases, Work, compare
from smile import Objective

ROUNDS = 5
SMOOTHING = 0.1  # label smoothing of MLE, as in BLIP's configurations
MIXTURE = {"mle": 0.01, "smile": 0.99}
OBJECTIVES = {
    "SMILE": "smile",
    "0.01 MLE + 0.99 SMILE": MIXTURE,
    "MLE": "mle",
    "reverse subsetting": "reverse",
    "random subsetting": "random",
}
MAIN_OBJECTIVES = ("SMILE", "0.01 MLE + 0.99 SMILE")
LIBRARY_COMPARISON = "beside other libraries"


class Sizes(NamedTuple):
    """B captions, N tokens per caption, V words in the vocabulary, width D."""

    B: int
    N: int
    V: int
    D: int = 768


USUAL_SIZES, TINY_SIZES = Sizes(32, 20, 30524), Sizes(2, 5, 50, 8)
LARGE_SIZES = (Sizes(32, 20, 131072), Sizes(32, 20, 262144), Sizes(2, 512, 262144))
LANGUAGE_MODEL = Sizes(8, 32, 151936, 896)  # the head of a small language model


def contender_losses(name: str, device: torch.device) -> dict[str, Callable[..., Tensor]]:
    """Return {contender: loss} for one of OBJECTIVES, or for LIBRARY_COMPARISON.

    A loss is a function of hidden states (B, N, D), head (V, D), bias (V,) and labels (B, N). The
    contender "naive" computes full logits; "cross-entropy" is torch's, without label smoothing.
    """

    def from_hidden(spec):
        objective = Objective(spec)
        return lambda h, w, _, labels: objective.from_hidden(h, w, None, labels).loss

    if name == LIBRARY_COMPARISON:
        ours = {f"our {name}": from_hidden(OBJECTIVES[name]) for name in ("MLE", *MAIN_OBJECTIVES)}
        return {**library_losses(device), **ours}
    objective = Objective(OBJECTIVES[name], SMOOTHING)
    found = {
        "from hidden states": lambda *inputs: objective.from_hidden(*inputs).loss,
        "naive": lambda h, w, b, labels: objective(F.linear(h, w, b), labels).loss,
    }
    if "mle" in OBJECTIVES[name]:
        found["cross-entropy"] = lambda h, w, b, labels: F.cross_entropy(
            F.linear(h, w, b).flatten(0, 1), labels.flatten()
        )
    return found


def library_losses(device: torch.device) -> dict[str, Callable[..., Tensor]]:
    """Return {library: its cross-entropy}, for the libraries that are installed.

    The functions have the arguments of the losses of `contender_losses`, but ignore the bias.
    """
    # These are functions of hidden states (M, D), a head (V, D) and labels (M,), where M = B * N.
    found = {"F.cross_entropy": lambda h, w, labels: F.cross_entropy(F.linear(h, w), labels)}
    if hasattr(F, "linear_cross_entropy"):  # torch 2.13
        found["F.linear_cross_entropy"] = F.linear_cross_entropy
    with contextlib.suppress(ImportError):
        from cut_cross_entropy import linear_cross_entropy

        impl = "cce" if device.type == "cuda" else "torch_compile"
        found[f"cut-cross-entropy, {impl}"] = functools.partial(linear_cross_entropy, impl=impl)
    if device.type == "cuda":
        with contextlib.suppress(ImportError):
            from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

            found["Liger"] = liger_fused_linear_cross_entropy

    def flatten_batch(function):
        return lambda h, w, _, labels: function(h.flatten(0, 1), w, labels.flatten())

    return {name: flatten_batch(function) for name, function in found.items()}


@functools.lru_cache(2)  # for TINY_SIZES and the row's sizes
def random_inputs(sizes: Sizes, device: torch.device) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return (hidden states, head, bias), which require gradients, and labels.

    The same sizes always give the same values.
    """
    generator = torch.Generator().manual_seed(0)
    B, N, V, D = sizes
    inputs = tuple(torch.randn(shape, generator=generator) for shape in ((B, N, D), (V, D), (V,)))
    inputs[1].mul_(D**-0.5)
    labels = torch.randint(V, (B, N), generator=generator)
    return tuple(x.to(device).requires_grad_() for x in inputs), labels.to(device)


def build_work(contender: str, name: str, sizes: Sizes, device: torch.device, bf16: bool) -> Work:
    """Return the work of one contender. name: one of OBJECTIVES, or LIBRARY_COMPARISON.

    A work in TINY_SIZES is called first, so that loading libraries is not measured.
    """
    if sizes != TINY_SIZES:
        build_work(contender, name, TINY_SIZES, device, bf16)()
    inputs, labels = random_inputs(sizes, device)
    compute_loss = contender_losses(name, device)[contender]

    def call():
        for tensor in inputs:
            tensor.grad = None
        torch.manual_seed(0)  # random subsetting samples words
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = compute_loss(*inputs, labels)
        loss.backward()
        return [loss.detach(), *(x.grad for x in inputs if x.grad is not None)]

    return call


def cases(options: argparse.Namespace) -> Cases:
    """Return cases for all objectives, for bf16, for LARGE_SIZES, and for LIBRARY_COMPARISON."""
    device = options.device

    def measure(name, sizes, bf16=False):
        builder = functools.partial(build_work, name=name, sizes=sizes, device=device, bf16=bf16)
        works = {contender: builder(contender) for contender in contender_losses(name, device)}
        peers = list(library_losses(device)) if name == LIBRARY_COMPARISON else list(works)[-1:]
        outputs = sum(x.nbytes for x in random_inputs(sizes, device)[0])
        return compare(works, peers, options.rounds, builder=builder, outputs=outputs)

    rows = {}

    def add_row(name, sizes, bf16=False):
        title = f"{name}, B {sizes.B}, N {sizes.N}, V {sizes.V:,}{', bf16' if bf16 else ''}"
        rows[title] = functools.partial(measure, name, sizes, bf16)

    if options.quick:
        for name in (*MAIN_OBJECTIVES, LIBRARY_COMPARISON):
            add_row(name, TINY_SIZES)
        return rows
    for name in (*OBJECTIVES, LIBRARY_COMPARISON):
        add_row(name, USUAL_SIZES)
    for name in MAIN_OBJECTIVES:
        add_row(name, USUAL_SIZES, bf16=True)
    for sizes, name in itertools.product(LARGE_SIZES, MAIN_OBJECTIVES):
        add_row(name, sizes)
    add_row(LIBRARY_COMPARISON, LANGUAGE_MODEL)
    return rows
