"""Builds a model without initialising its weights, because a checkpoint fills them.

`torch.nn.utils.skip_init` cannot be used: it builds one module at a time, requires that the
module's class accepts a `device`, and leaves buffers empty. But captioners contain modules of
several libraries, not all of which accept a `device`, and need buffers with computed values.
"""

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_INIT_NAMES = ("uniform_", "normal_", "trunc_normal_", "orthogonal_", "sparse_")
_INIT_NAMES += ("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_")
RANDOM_FILLS = {getattr(nn.init, name) for name in _INIT_NAMES} | {Tensor.uniform_, Tensor.normal_}
# After sampling, trunc_normal_ calls these functions on a parameter to transform the samples.
AFTER_TRUNC_NORMAL = {Tensor.erfinv_, Tensor.mul_, Tensor.add_, Tensor.clamp_}


class SkipInit(TorchFunctionMode):
    """Within this context, random initialisation of weights does nothing.

    torch's random generator does not advance either. For BLIP-base with 224 million weights,
    initialisation would take longer than reading a checkpoint. The caller must load all weights.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in RANDOM_FILLS:
            return args[0] if args else kwargs["tensor"]
        if function in AFTER_TRUNC_NORMAL and isinstance(args[0], nn.Parameter):
            return args[0]
        return function(*args, **kwargs)
