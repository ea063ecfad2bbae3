"""Raises a one-line error for wrong values in a batch, also in a compiled program.

Tensors have no values during compilation. Therefore a compiled program contains an operator that
reads the values when it runs. On an accelerator this needs a synchronisation.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def refuse(invalid: Tensor, lines: Sequence[str], passthrough: Tensor) -> Tensor:
    """Return `passthrough`. Raise ValueError with the first of K error lines that applies.

    invalid: bool (K, B), the rows of the batch to which each line applies. In the raised line, the
    number of the first such row replaces {row}. A compiled program drops the check unless the
    caller uses the result.
    """
    if torch.compiler.is_compiling():
        return _operator(passthrough, invalid, "\n".join(lines))
    _raise_where(invalid, lines)
    return passthrough


def _raise_where(invalid: Tensor, lines: Sequence[str]) -> None:
    for rows, line in zip(invalid.cpu(), lines):
        if rows.any():
            raise ValueError(line.replace("{row}", str(rows.nonzero()[0].item())))


@torch.library.custom_op("smile::refuse", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _operator(passthrough: Tensor, invalid: Tensor, lines: str) -> Tensor:
    _raise_where(invalid, lines.split("\n"))
    return passthrough.clone()


@_operator.register_fake
def _(passthrough, invalid, lines):
    return torch.empty_like(passthrough)


_operator.register_autograd(lambda ctx, gradient: (gradient, None, None))
