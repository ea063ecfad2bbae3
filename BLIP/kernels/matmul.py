"""Computes matrix products and linear layers, on a CPU with oneDNN where oneDNN is faster.

torch uses MKL for float32. On AVX-512 processors of vendors other than Intel, MKL uses only AVX2
and reaches half of the possible speed. On Intel's processors MKL is faster than oneDNN; it computes
the gradient of a weight two to three times as fast. torch exposes oneDNN's matrix product only as a
linear op without autograd, so that `matmul` has to call this linear op, too.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

CPUINFO = "/proc/cpuinfo"  # Linux's description of the processors


def is_intel() -> bool:
    """Return whether the CPU is made by Intel.

    Return True on systems other than Linux. This is harmless on Macs, which have no AVX-512.
    """
    try:
        with open(CPUINFO) as file:
            return "GenuineIntel" in file.read(1000)  # the vendor of the first processor
    except OSError:
        return True


HAS_ONEDNN = torch.backends.mkldnn.is_available()
HAS_AMX = torch.cpu._is_amx_tile_supported()  # makes torch's attention in bfloat16 fast
USE_ONEDNN_FP32 = (
    HAS_ONEDNN and torch.backends.cpu.get_cpu_capability() == "AVX512" and not is_intel()
)
# Without these instructions, the CPU emulates bfloat16, which is slow.
USE_ONEDNN_BF16 = HAS_ONEDNN and torch.cpu._is_avx512_bf16_supported()


def uses_onednn_fp32(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether to use oneDNN instead of MKL, because it is faster for float32 on this CPU.

    Return False for other dtypes and devices. Callers must not rely on autograd, which oneDNN's ops
    do not support.
    """
    return USE_ONEDNN_FP32 and device.type == "cpu" and dtype == torch.float32


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute F.linear without autograd.

    In bfloat16 oneDNN is faster than F.linear, which first copies the bias to the output.
    """
    bf16 = USE_ONEDNN_BF16 and x.is_cpu and x.dtype == torch.bfloat16
    if not (bf16 or uses_onednn_fp32(x.device, x.dtype)):
        return F.linear(x, weight, bias)
    return onednn_linear(x.contiguous(), weight, bias)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Compute a ([heads,] n, k) @ b ([heads,] k, m) without autograd.

    oneDNN is used only for 2-D inputs.
    """
    if a.dim() > 2 or not uses_onednn_fp32(a.device, a.dtype):
        return a @ b
    # Either a or the transposed b can be the argument x of `onednn_linear`, which must be
    # contiguous. If a copy is necessary, copy the smaller operand.
    if a.is_contiguous() or a.numel() <= b.numel():
        return onednn_linear(a.contiguous(), b.t())
    return onednn_linear(b.t().contiguous(), a).t()


def onednn_linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """Compute F.linear by oneDNN, without autograd. x must be contiguous, but not the weight."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
