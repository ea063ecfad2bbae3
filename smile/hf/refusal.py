"""One line for what is wrong with the values of a batch, in a compiled program too.

Values are not there when a program is compiled. An operator in it looks at them when it runs: on a
CPU always, elsewhere the first time alone, since an accelerator has to be waited for.
"""

import torch
from torch import Tensor

_LOOKED: set[tuple[int, str]] = set()


def refuse(wrong: Tensor, line: str, through: Tensor, number: int) -> Tensor:
    """`through`; ValueError with `line` where `wrong` is true.

    wrong: bool (B,), of rows, the first of which is put for {row} in the line. number: of the model
    that is compiled. What is returned is to be used, or a compiled program leaves the look out.
    """
    if torch.compiler.is_compiling():
        return _operator(through, wrong, line, number)
    _raise_where(wrong, line)
    return through


def _raise_where(wrong: Tensor, line: str) -> None:
    if wrong.any():
        raise ValueError(line.replace("{row}", str(wrong.nonzero()[0].item())))


@torch.library.custom_op("smile::refuse", mutates_args=())
def _operator(through: Tensor, wrong: Tensor, line: str, number: int) -> Tensor:
    if wrong.is_cpu or (number, line) not in _LOOKED:
        _LOOKED.add((number, line))
        _raise_where(wrong, line)
    return through.clone()


@_operator.register_fake
def _(through, wrong, line, number):
    return torch.empty_like(through)


_operator.register_autograd(lambda ctx, gradient: (gradient, None, None, None))
