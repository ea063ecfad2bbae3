"""Defines a linear layer for inference, whose weight is cast and packed only once."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from BLIP.kernels import matmul


class InferenceLinear(nn.Module):
    """A linear layer for inference: x of any floating type (..., in) -> `dtype` (..., out).

    pack: store the weight in oneDNN's memory layout if possible. `pack` must be false for
    torch.compile, which does not support this layout.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, pack: bool = True):
        super().__init__()
        self.dtype = dtype
        weight = linear.weight.detach()
        self.packed = pack and _can_pack(weight.device, dtype)
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype))
        else:
            self.weight = weight.to(dtype, copy=True)  # not a buffer, so not in the state dict
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        if self.packed:
            return matmul.onednn_linear(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)


def _can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a weight can be stored in oneDNN's memory layout.

    If a weight has another layout, oneDNN reorders it in every decoding step. That takes longer
    than the product itself, because a step has only a few rows. torch has the ops for this layout
    only under private names.
    """
    if device.type != "cpu" or not matmul.HAS_ONEDNN:
        return False
    bf16 = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return bf16 or dtype == torch.float32
