"""Measures the fused objective from hidden states, compared with losses on full logits.

    bash scripts/benchmark.sh objective [--quick]
    python -m benchmarks.topic objective --against FOLDER

All contenders get hidden states (B, N, D) and a head (V, D), and compute the loss and all
gradients. Memory is the growth to the peak during one call, without the bytes of the gradients.
"beside other libraries", the peers are their cross-entropies, the head has no bias, and labels are
not smoothed. In other rows, the package `smile` of the checkout FOLDER is the peer.
"""

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Cases, Work, compare
from smile import Objective
from smile.alternatives import ALTERNATIVES

ROUNDS = 5
SMOOTHING = 0.1  # label smoothing of MLE, as in BLIP's configurations
MIXTURE = {"mle": 0.01, "smile": 0.99}
MAIN_OBJECTIVES = {"SMILE": "smile", "0.01 MLE + 0.99 SMILE": MIXTURE}
OBJECTIVES = {
    **MAIN_OBJECTIVES,
    "MLE": "mle",
    "reverse subsetting": "reverse",
    "random subsetting": "random",
    **{name: name for name in ALTERNATIVES},
    "selective_eos": {"selective_eos": {"eos_token_id": 2}},
}
LIBRARY_COMPARISON = "beside other libraries"
_OTHER_MODULES: dict[Path, dict[str, Any]] = {}  # those of other checkouts' packages
# B captions, N tokens per caption, V words in the vocabulary, width D.
USUAL_SIZES = (32, 20, 30524, 768), (8, 32, 151936, 896)  # BLIP; a small language model
TINY_SIZES = (2, 5, 50, 8)
LARGE_SIZES = (32, 20, 131072, 768), (32, 20, 262144, 768), (2, 512, 262144, 768)


class Row(NamedTuple):
    """What is measured. name: one of OBJECTIVES, or LIBRARY_COMPARISON. against: a checkout."""

    device: torch.device
    against: Optional[Path]
    name: str
    sizes: tuple[int, ...] = TINY_SIZES
    bf16: bool = False


@contextlib.contextmanager
def package_of(folder: Path) -> Iterator[Any]:
    """Yield the package `smile` of a checkout. Its modules replace ours in this context."""

    def take_out():
        return {x: sys.modules.pop(x) for x in [*sys.modules] if x.partition(".")[0] == "smile"}

    ours = take_out()
    sys.modules.update(_OTHER_MODULES.get(folder, {}))
    sys.path.insert(0, str(folder))
    try:
        import smile

        yield smile
    finally:
        sys.path.remove(str(folder))
        _OTHER_MODULES[folder] = take_out()
        sys.modules.update(ours)


def contender_losses(row: Row) -> dict[str, Callable[..., Tensor]]:
    """Return {contender: a function of hidden states, head (V, D), bias (V,) and labels (B, N)}.

    "naive" computes full logits, "cross-entropy" is torch's without label smoothing, and "that of
    FOLDER" is left out if that package lacks the objective.
    """
    has_bias = row.name != LIBRARY_COMPARISON

    def fused(objective):
        return lambda h, w, b, y: objective.from_hidden(h, w, b if has_bias else None, y).loss

    if row.name == LIBRARY_COMPARISON:
        ours = {f"our {x}": fused(Objective(OBJECTIVES[x])) for x in ("MLE", *MAIN_OBJECTIVES)}
        return {**library_losses(row.device), **ours}
    objective = Objective(OBJECTIVES[row.name], SMOOTHING)
    found = {
        "from hidden states": fused(objective),
        "naive": lambda h, w, b, labels: objective(F.linear(h, w, b), labels).loss,
    }
    if "mle" in OBJECTIVES[row.name]:
        found["cross-entropy"] = lambda h, w, b, labels: F.cross_entropy(
            F.linear(h, w, b).flatten(0, 1), labels.flatten()
        )
    if row.against:
        with contextlib.suppress(ValueError), package_of(row.against) as package:
            other = fused(package.Objective(OBJECTIVES[row.name], SMOOTHING))
            found[f"that of {row.against}"] = package_of(row.against)(other)  # imports when called
    return found


def library_losses(device: torch.device) -> dict[str, Callable[..., Tensor]]:
    """Return {library: its cross-entropy} for the installed libraries. Bias is ignored."""
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

    def flattened(loss):
        return lambda h, w, _, labels: loss(h.flatten(0, 1), w, labels.flatten())

    return {name: flattened(loss) for name, loss in found.items()}


@functools.lru_cache(2)  # for TINY_SIZES and the row's sizes
def random_inputs(sizes: tuple, device: torch.device) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return (hidden states, head, bias), which require gradients, and labels; always the same."""
    (B, N, V, D), generator = sizes, torch.Generator().manual_seed(0)
    hidden, head, bias = (torch.randn(x, generator=generator) for x in ((B, N, D), (V, D), (V,)))
    labels = torch.randint(V, (B, N), generator=generator)
    inputs = (x.to(device).requires_grad_() for x in (hidden, head.mul_(D**-0.5), bias))
    return tuple(inputs), labels.to(device)


def build_work(contender: str, row: Row) -> Work:
    """Return the work of a contender. It is called in TINY_SIZES first, which loads libraries."""
    if row.sizes != TINY_SIZES:
        build_work(contender, row._replace(sizes=TINY_SIZES))()
    inputs, labels = random_inputs(row.sizes, row.device)
    compute_loss = contender_losses(row)[contender]

    def call():
        for tensor in inputs:
            tensor.grad = None
        torch.manual_seed(0)  # random subsetting samples words
        with torch.autocast(row.device.type, torch.bfloat16, enabled=row.bf16):
            loss = compute_loss(*inputs, labels)
        loss.backward()
        return [loss.detach(), *(x.grad for x in inputs if x.grad is not None)]

    return call


def measure(row: Row, rounds: int) -> dict[str, Any]:
    works = {contender: build_work(contender, row) for contender in contender_losses(row)}
    peers = library_losses(row.device) if row.name == LIBRARY_COMPARISON else [*works][-1:]
    outputs = sum(x.nbytes for x in random_inputs(row.sizes, row.device)[0])
    builder = functools.partial(build_work, row=row)
    return compare(works, [*peers], rounds, builder=builder, outputs=outputs)


def cases(options: argparse.Namespace) -> Cases:
    """Return a case for each objective, size and precision, and for LIBRARY_COMPARISON."""
    rows, planned = [(LIBRARY_COMPARISON, TINY_SIZES)] if options.quick else [], {}
    for sizes in () if options.quick else USUAL_SIZES:
        rows += [(name, sizes, bf16) for bf16 in (False, True) for name in OBJECTIVES]
        rows += [(LIBRARY_COMPARISON, sizes)]
    for sizes in [TINY_SIZES] if options.quick else LARGE_SIZES:
        rows += [(name, sizes) for name in MAIN_OBJECTIVES]
    for row in (Row(options.device, options.against, *row) for row in rows):
        title = "{}, B {}, N {}, V {:,}".format(row.name, *row.sizes) + ", bf16" * row.bf16
        planned[title] = functools.partial(measure, row, options.rounds)
    return planned
