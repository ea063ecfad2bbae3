"""A linear layer whose weight is cast and laid out once."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from BLIP.kernels import matmul


class InferenceLinear(nn.Module):
    """A linear layer without gradients: x of any floating type -> `dtype`.

    pack: into oneDNN's layout where it can be, which torch's compiler cannot read.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, pack: bool = True):
        super().__init__()
        self.dtype = dtype
        weight = linear.weight.detach()
        self.packed = pack and _can_pack(weight.device, dtype)
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype))
        else:
            self.weight = weight.to(dtype, copy=True)  # no buffer: it is not saved
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        if self.packed:
            return matmul.onednn_linear(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)


def _can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN can keep a weight in its own layout.

    A step of few rows reads every weight for little work; in its own layout oneDNN need not lay
    them out at each step. torch has this for its compiler and under a private name, which is
    looked for first.
    """
    operators = torch.ops.mkldnn
    there = matmul.HAS_ONEDNN and hasattr(operators, "_reorder_linear_weight")
    if device.type != "cpu" or not there:
        return False
    if dtype == torch.bfloat16:
        return operators._is_mkldnn_bf16_supported()
    return dtype == torch.float32
