"""One line for what is wrong with the values of a batch, in a compiled program too.

Values are not there when a program is compiled. An operator in it looks at them when it runs, which
an accelerator has to be waited for.
"""

from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor

_LOOKED: set[tuple[int, str]] = set()


def refuse(
    wrong: Tensor, lines: Sequence[str], through: Tensor, once: Optional[int] = None
) -> Tensor:
    """`through`; ValueError with the first of the lines for which `wrong` is true.

    wrong: bool (K, B), for each line the rows, the first of which is put for {row}; there may be
    more than lines. once: of a compiled program, the number of the model whose first batch alone is
    looked at off the CPU. What is returned is to be used, or a compiled program leaves the look
    out.
    """
    if torch.compiler.is_compiling():
        return _operator(through, wrong, "\n".join(lines), once)
    _raise_where(wrong, lines)
    return through


def _raise_where(wrong: Tensor, lines: Sequence[str]) -> None:
    for rows, line in zip(wrong.cpu(), lines):
        if rows.any():
            raise ValueError(line.replace("{row}", str(rows.nonzero()[0].item())))


@torch.library.custom_op("smile::refuse", mutates_args=())
def _operator(through: Tensor, wrong: Tensor, lines: str, once: Optional[int]) -> Tensor:
    looked = once is not None and not wrong.is_cpu and (once, lines) in _LOOKED
    # A CUDA graph is recorded without a look, and replayed without one.
    if not looked and not (wrong.is_cuda and torch.cuda.is_current_stream_capturing()):
        _LOOKED.add((once, lines))
        _raise_where(wrong, lines.split("\n"))
    return through.clone()


@_operator.register_fake
def _(through, wrong, lines, once):
    return torch.empty_like(through)


_operator.register_autograd(lambda ctx, gradient: (gradient, None, None, None))
