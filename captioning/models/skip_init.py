"""A model whose weights a checkpoint will bring, made without drawing others first."""

from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_INIT = ("uniform_", "normal_", "trunc_normal_", "orthogonal_", "sparse_")
_INIT += ("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_")
DRAWS = {getattr(nn.init, name) for name in _INIT}
DRAWS |= {Tensor.uniform_, Tensor.normal_}
# With these a truncated normal distribution is made, in a weight, of a draw that is left out.
FOLLOWING = {Tensor.erfinv_, Tensor.mul_, Tensor.add_, Tensor.clamp_}


class Unfilled(TorchFunctionMode):
    """Within it what draws weights at random leaves them as memory happens to be.

    For BLIP-base, of 224 million weights, drawing takes longer than reading them from a file.
    Whoever uses it puts a value in place of every weight. Torch's generator stays where it was.
    """

    def __torch_function__(
        self,
        function: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function in DRAWS:
            return args[0] if args else kwargs["tensor"]
        if function in FOLLOWING and isinstance(args[0], nn.Parameter):
            return args[0]
        return function(*args, **kwargs)
