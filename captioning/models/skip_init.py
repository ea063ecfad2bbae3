"""Builds a model without initialising its weights, because a checkpoint fills them.

`torch.nn.utils.skip_init` does not work here: it needs classes that accept a `device`, builds one
module at a time, and leaves buffers empty. Captioners contain modules of several libraries, and
their buffers are computed.
"""

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_INIT_NAMES = ("uniform_", "normal_", "trunc_normal_", "orthogonal_", "sparse_")
_INIT_NAMES += ("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_")
RANDOM_FILLS = {getattr(nn.init, name) for name in _INIT_NAMES} | {Tensor.uniform_, Tensor.normal_}
# trunc_normal_ calls these functions on a parameter after sampling it.
AFTER_TRUNC_NORMAL = {Tensor.erfinv_, Tensor.mul_, Tensor.add_, Tensor.clamp_}


class SkipInit(TorchFunctionMode):
    """Within this context, random initialisation changes neither weights nor torch's generator.

    For BLIP-base with 224 million weights, initialisation takes longer than reading a checkpoint.
    The caller must load all weights.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in RANDOM_FILLS:
            return args[0] if args else kwargs["tensor"]
        if function in AFTER_TRUNC_NORMAL and isinstance(args[0], nn.Parameter):
            return args[0]
        return function(*args, **kwargs)
