"""Cross-entropy from hidden states as other libraries compute it; those that are installed.

Each is a function of hidden states (M, D), a head (V, D) and labels (M,), and returns the mean.
"""

import contextlib
from collections.abc import Callable

import torch
import torch.nn.functional as F

TRL_CHUNK = 32768  # words at a time, as its trainers have it


def full_logits(hidden, weight, labels):
    return F.cross_entropy(F.linear(hidden, weight), labels)


def libraries() -> dict[str, Callable]:
    """By name; what is not installed, or does not run on this machine's device, is left out."""
    found = {"F.cross_entropy": full_logits}
    if hasattr(F, "linear_cross_entropy"):  # torch 2.13
        found["F.linear_cross_entropy"] = F.linear_cross_entropy
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        options = torch.nn.LinearCrossEntropyOptions()
        found["the same in chunks"] = lambda *inputs: F.linear_cross_entropy(
            *inputs, options=options
        )
    with contextlib.suppress(ImportError):
        from trl.kernels import ChunkedLogProbFunction

        found["TRL's log-probabilities"] = lambda hidden, weight, labels: (
            -ChunkedLogProbFunction.apply(
                hidden, weight, None, labels, 1.0, TRL_CHUNK, None, 1.0, ()
            )[0].mean()
        )
    with contextlib.suppress(ImportError):
        from cut_cross_entropy import linear_cross_entropy

        for way in ("torch_compile", "cce") if torch.cuda.is_available() else ("torch_compile",):
            found[f"cut-cross-entropy, {way}"] = lambda *inputs, way=way: linear_cross_entropy(
                *inputs, impl=way
            )
    if torch.cuda.is_available():
        with contextlib.suppress(ImportError):
            from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

            found["Liger"] = lambda hidden, weight, labels: liger_fused_linear_cross_entropy(
                hidden, weight, labels
            )
    return found
