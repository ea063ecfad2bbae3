"""Matrix products and linear layers on a CPU, with oneDNN where oneDNN is faster.

torch uses MKL for float32. On AVX-512 processors by other vendors than Intel, MKL uses only AVX2
and reaches half of the possible speed. On Intel's processors MKL is faster than oneDNN: two to
three times for the gradient of a weight. torch exposes oneDNN's matrix product only as a linear op
without autograd, so `matmul` calls that op, too.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

CPUINFO = "/proc/cpuinfo"  # Linux's description of the processors


def is_intel() -> bool:
    """Return whether the CPU is made by Intel. True if this is not Linux: Macs have no AVX-512."""
    try:
        with open(CPUINFO) as file:
            return "GenuineIntel" in file.read(1000)  # the vendor of the first processor
    except OSError:
        return True


HAS_ONEDNN = torch.backends.mkldnn.is_available()
HAS_AMX = torch.cpu._is_amx_tile_supported()  # for torch's bf16 attention
USE_ONEDNN_FP32 = (
    HAS_ONEDNN and torch.backends.cpu.get_cpu_capability() == "AVX512" and not is_intel()
)
# Without bfloat16 instructions, bfloat16 is slow emulation.
USE_ONEDNN_BF16 = HAS_ONEDNN and torch.cpu._is_avx512_bf16_supported()


def uses_onednn_fp32(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN is faster than MKL here. Only in float32: False for other dtypes.

    oneDNN's ops do not support autograd.
    """
    return USE_ONEDNN_FP32 and device.type == "cpu" and dtype == torch.float32


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """F.linear without autograd.

    In bfloat16 it is faster than F.linear, which first copies the bias to the output.
    """
    bf16 = USE_ONEDNN_BF16 and x.device.type == "cpu" and x.dtype == torch.bfloat16
    if not (bf16 or uses_onednn_fp32(x.device, x.dtype)):
        return F.linear(x, weight, bias)
    return onednn_linear(x.contiguous(), weight, bias)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """([heads,] n, k) @ ([heads,] k, m) without autograd. oneDNN is used for 2-D inputs only."""
    if a.dim() > 2 or not uses_onednn_fp32(a.device, a.dtype):
        return a @ b
    # Either operand can be x of `onednn_linear`, which must be contiguous. Copy the smaller one.
    if a.is_contiguous() or a.numel() <= b.numel():
        return onednn_linear(a.contiguous(), b.t())
    return onednn_linear(b.t().contiguous(), a).t()


def onednn_linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """F.linear by oneDNN, without autograd. x must be contiguous; the weight may be strided."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
