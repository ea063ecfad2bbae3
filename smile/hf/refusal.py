"""Raises a one-line error for wrong values in a batch, also in a compiled program.

Tensors have no values during compilation. Therefore a compiled program contains an operator that
reads the values when it runs. On an accelerator this needs a synchronisation.
"""

from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor

_CHECKED: set[tuple[Optional[int], str]] = set()  # models and lines that have been checked once


def refuse(
    wrong: Tensor, lines: Sequence[str], through: Tensor, once: Optional[int] = None
) -> Tensor:
    """Return `through`. Raise ValueError with the first line for which `wrong` is true in a row.

    wrong: bool (K, B), the wrong rows for each line. The first wrong row replaces {row} in the
    line. K may be larger than the number of lines. once: the number of a model. A compiled program
    then checks only the model's first batch, except on a CPU, where checks are cheap. A compiled
    program drops the check unless the result is used.
    """
    if torch.compiler.is_compiling():
        return _operator(through, wrong, "\n".join(lines), once)
    _raise_where(wrong, lines)
    return through


def _raise_where(wrong: Tensor, lines: Sequence[str]) -> None:
    for rows, line in zip(wrong.cpu(), lines):
        if rows.any():
            raise ValueError(line.replace("{row}", str(rows.nonzero()[0].item())))


@torch.library.custom_op("smile::refuse", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _operator(through: Tensor, wrong: Tensor, lines: str, once: Optional[int]) -> Tensor:
    if once is None or wrong.is_cpu or (once, lines) not in _CHECKED:
        _raise_where(wrong, lines.split("\n"))
        _CHECKED.add((once, lines))
    return through.clone()


@_operator.register_fake
def _(through, wrong, lines, once):
    return torch.empty_like(through)


_operator.register_autograd(lambda ctx, gradient: (gradient, None, None, None))
