"""A linear layer for inference. Its weight is cast and packed once."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from BLIP.kernels import matmul


class InferenceLinear(nn.Module):
    """A linear layer without gradients: x of any floating type -> `dtype`.

    pack: store the weight in oneDNN's layout if possible. torch.compile does not support that.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, pack: bool = True):
        super().__init__()
        self.dtype = dtype
        weight = linear.weight.detach()
        self.packed = pack and _can_pack(weight.device, dtype)
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype))
        else:
            self.weight = weight.to(dtype, copy=True)  # no buffer, so that it is not saved
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        if self.packed:
            return matmul.onednn_linear(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)


def _can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a weight can be stored in oneDNN's layout.

    oneDNN would reorder a weight in another layout in every decoding step, which takes long
    compared with the product of a few rows. torch has the operators for torch.compile, under
    private names.
    """
    if device.type != "cpu" or not matmul.HAS_ONEDNN:
        return False
    bf16 = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return bf16 or dtype == torch.float32
