"""Builds a model without initialising its weights, because a checkpoint fills them.

`torch.nn.utils.skip_init` cannot be used: it builds one module at a time, requires that the
module's class accepts a `device`, and leaves buffers empty. But captioners contain modules of
several libraries, not all of which accept a `device`, and need buffers with computed values.
"""

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

RANDOM_FILLS = (Tensor.uniform_, Tensor.normal_)
# After sampling, trunc_normal_ calls these functions on a parameter to transform the samples.
AFTER_TRUNC_NORMAL = (Tensor.erfinv_, Tensor.mul_, Tensor.add_, Tensor.clamp_)


class SkipInit(TorchFunctionMode):
    """Within this context, random initialisation of weights does nothing.

    torch's random generator does not advance either. For BLIP-base with 224 million weights,
    initialisation would take longer than reading a checkpoint. The caller must load all weights.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"]
        is_parameter = args and isinstance(args[0], nn.Parameter)
        if function in RANDOM_FILLS or (is_parameter and function in AFTER_TRUNC_NORMAL):
            return args[0]
        return function(*args, **(kwargs or {}))
