"""Products of matrices in float32 on a CPU: oneDNN's, where torch's own use half of the processor.

torch leaves them to MKL, which on processors with AVX-512 of another maker than its own works with
AVX2. What torch lends out of oneDNN is its linear layer and that layer's gradients.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_LENT = (
    (torch.ops.mkldnn, "_linear_pointwise"),
    (torch.ops.aten, "mkldnn_linear_backward_input"),
    (torch.ops.aten, "mkldnn_linear_backward_weights"),
)
LENDS = torch.backends.mkldnn.is_available() and all(hasattr(*each) for each in _LENT)
QUICK = LENDS and torch.backends.cpu.get_cpu_capability() == "AVX512"


def quick(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products are oneDNN's here. Their gradients are the caller's to make."""
    return QUICK and device.type == "cpu" and dtype == torch.float32


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """F.linear without gradients."""
    if not quick(x.device, x.dtype):
        return F.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, "none", [], "")


def linear_gradients(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of `linear`, whose x (..., in) and gradient (..., out) are given: of x, weight and bias."""
    if not quick(x.device, x.dtype):
        rows = gradient.flatten(0, -2)  # (n, out)
        return gradient @ weight, rows.t() @ x.flatten(0, -2), rows.sum(0)
    gradient, x = gradient.contiguous().to_mkldnn(), x.contiguous().to_mkldnn()
    of_x = torch.ops.aten.mkldnn_linear_backward_input(x.shape, gradient, weight)
    of_both = torch.ops.aten.mkldnn_linear_backward_weights(gradient, x, weight, True)
    return of_x.to_dense(), *of_both


def of_head(a: Tensor, b: Tensor) -> Tensor:
    """a (1, n, k) @ b (1, k, m), where `quick` and each lies by rows or by columns.

    oneDNN's x lies by rows, its weight as it likes. So an a that lies by columns is the weight.
    """
    a, b = a[0], b[0]
    product = torch.ops.mkldnn._linear_pointwise
    if a.is_contiguous():
        return product(a, b.t(), None, "none", [], "").unsqueeze(0)
    return product(b.t().contiguous(), a, None, "none", [], "").t().unsqueeze(0)
