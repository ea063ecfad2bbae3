"""Products of matrices on a CPU: oneDNN's, where torch's own in float32 use half of the processor.

torch leaves them to MKL, which on processors with AVX-512 of another maker than its own works with
AVX2. On its maker's it is the faster one, twice to three times in the gradient of a weight. What
torch lends out of oneDNN is its linear layer.
"""

import os
import platform
from pathlib import Path
from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

LENDS = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def may_use(*kinds: str) -> bool:
    """Whether oneDNN, which can be held to older instructions, may use any of these."""
    most = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    return most in ("ALL", "DEFAULT") or any(kind in most for kind in kinds)


def has_bf16() -> bool:
    """Whether bfloat16 takes less time than float32 on this CPU, where others only imitate it."""
    return torch.cpu._is_avx512_bf16_supported() and may_use("BF16", "FP16", "AMX", "AVX10")


def of_mkls_maker(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is of MKL's own maker; Linux tells in that file."""
    try:
        with cpuinfo.open() as lines:
            maker = next((line for line in lines if line.startswith("vendor_id")), "")
    except OSError:  # no Linux
        maker = platform.processor()
    return "GenuineIntel" in maker


AMX = torch.cpu._is_amx_tile_supported() and may_use("AMX")  # torch's in bfloat16 are made of it
AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
QUICK = LENDS and AVX512 and not of_mkls_maker()
BF16 = LENDS and has_bf16()  # whether layers in bfloat16 are oneDNN's as a whole


def quick(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products are oneDNN's here. Their gradients are the caller's to make."""
    return QUICK and device.type == "cpu" and dtype == torch.float32


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """F.linear without gradients. In bfloat16 torch's own writes the bias first, and adds to it."""
    bf16 = BF16 and x.device.type == "cpu" and x.dtype == torch.bfloat16
    if not (bf16 or quick(x.device, x.dtype)):
        return F.linear(x, weight, bias)
    return onednn_linear(x.contiguous(), weight, bias)


def linear_gradients(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of `linear`, whose x (..., in) and gradient (..., out) are given: of x, weight and bias."""
    rows = gradient.flatten(0, -2)
    of_weight = product_of(x)(rows.t(), x.flatten(0, -2))
    return gradient_of_input(gradient, weight), of_weight, rows.sum(0)


def gradient_of_input(gradient: Tensor, weight: Tensor) -> Tensor:
    """Of `linear` and its x alone: (..., out) -> (..., in)."""
    rows = gradient.flatten(0, -2)
    return product_of(weight)(rows, weight).unflatten(0, gradient.shape[:-1])


def product_of(x: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The product (n, k) @ (k, m) of matrices that are where x is, and of its type."""
    return _onednns if quick(x.device, x.dtype) else torch.matmul


def _onednns(a: Tensor, b: Tensor) -> Tensor:
    """Where `a` does not lie by rows it is copied, or becomes the weight."""
    if a.is_contiguous() or a.numel() <= b.numel():
        return onednn_linear(a.contiguous(), b.t())
    return onednn_linear(b.t().contiguous(), a).t()


def onednn_linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """F.linear of oneDNN, without gradients: x lies by rows, the weight as it likes."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
