"""Weights in 8 bits, and in 16 where 8 would do harm, for captioning on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from BLIP.kernels.inference_linear import InferenceLinear
from BLIP.kernels.matmul import AMX, has_bf16

# torch's kernels: oneDNN's are the fastest in 8 bits for the hundreds of rows of an image, and
# FBGEMM alone has float16 weights.
INT8, FLOAT16 = "onednn", "fbgemm"
NEEDED = ("qlinear_prepack", "qlinear_pointwise")
LARGEST = 127  # of a weight: -128 stays unused, as 0 is in the middle
LEAST_OF_GELU = -0.17
GRAIN = 2**15  # numbers that torch gives a thread before it takes another


def has_int8(device: torch.device) -> bool:
    """Whether there are kernels for it."""
    engines = torch.backends.quantized.supported_engines
    has = {INT8, FLOAT16} <= set(engines) and all(hasattr(torch.ops.onednn, n) for n in NEEDED)
    return has and device.type == "cpu"


def check_int8(device: torch.device, compiled: bool) -> None:
    """Raise ValueError where nothing can be computed in 8 bits."""
    if device.type != "cpu":
        raise ValueError(f"precision is int8, which is for CPUs; on {device.type} try bf16")
    if not has_int8(device):
        raise ValueError(
            "precision is int8, for which this torch has no kernels on this processor; try fp32"
        )
    if compiled:
        raise ValueError("compile is true, which cannot stand beside precision int8: set it false")


def int8_linear(linear: nn.Linear, name: str) -> nn.Module:
    """What takes the place of the layer of that name.

    The decoder has no 8 bits: with all of it in them, one caption in fourteen was another, and with
    an image's keys and values alone one in twenty; docs/benchmarks.md.
    """
    if name.startswith("visual_encoder"):
        to_attention = AMX and name.endswith("attn.qkv")  # in bfloat16 half the time there
        dtype = torch.bfloat16 if to_attention else torch.float32
        return Int8Linear(linear, of_gelu=name.endswith("mlp.fc2"), dtype=dtype)
    bf16 = has_bf16()
    if bf16 and name.endswith(("crossattention.self.key", "crossattention.self.value")):
        return InferenceLinear(linear, torch.bfloat16)  # half the time, and what a step reads
    return HalfLinear(linear, to_product=name.endswith("crossattention.self.query") and not bf16)


class Int8Linear(nn.Module):
    """x of any floating type (..., in) -> `dtype` (..., out), without gradients.

    Each row of the weight has a scale, and so has, found anew at each call, each vector of x: the
    caption of an image does not depend on those beside it. of_gelu: x is a GELU's, which is hardly
    below 0, and has nearly all numbers above it.
    """

    def __init__(
        self, linear: nn.Linear, of_gelu: bool = False, dtype: torch.dtype = torch.float32
    ):
        super().__init__()
        weight = linear.weight.detach().float()
        self.scales = weight.abs().amax(1).clamp(min=1e-12) / LARGEST
        weight = (weight / self.scales[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(weight, None)
        self.zeros = torch.zeros_like(self.scales, dtype=torch.int64)
        self.bias = _bias(linear)
        # Without VNNI the sum of two products has 16 bits, and is cut off where x has all of 8.
        most = 255 if torch.cpu._is_vnni_supported() else 127
        self.of_gelu, self.dtype = of_gelu, dtype
        self.zero = most // 8 if of_gelu else most // 2 + 1  # what 0 is among the kernel's numbers
        self.above = most - self.zero
        self.least_scale = -LEAST_OF_GELU / self.zero if of_gelu else 1e-12
        # A whole row: two operands that are repeated along it would take twice as long.
        self.half_up = weight.new_full(weight.shape[1:], self.zero + 0.5, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().float()  # `out` takes nothing that learns
        scales = x.amax(-1, keepdim=True)
        if not self.of_gelu:
            scales = torch.maximum(scales, -x.amin(-1, keepdim=True))
        scales = scales.div_(self.above).clamp_(min=self.least_scale)
        seen = torch.addcmul(self.half_up, x, scales.reciprocal()).to(torch.uint8)
        weight = self.packed, self.scales, self.zeros
        to_float = 1.0, 0, torch.float32, "none", [], ""
        made = torch.ops.onednn.qlinear_pointwise(seen, 1.0, self.zero, *weight, None, *to_float)
        return torch.addcmul(self.bias, made, scales, out=made).to(self.dtype)


class HalfLinear(nn.Module):
    """x float32 (..., in) -> float32 (..., out): weights in float16, sums and x in float32.

    to_product: what comes next is a large product of MKL's. After one of FBGEMM's it takes twice as
    long, unless all threads have computed something of torch's own between the two.
    """

    def __init__(self, linear: nn.Linear, to_product: bool = False):
        super().__init__()
        self.to_product = to_product
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = FLOAT16
        try:
            weight = linear.weight.detach().float()
            self.packed = torch.ops.quantized.linear_prepack_fp16(weight, _bias(linear))
        finally:
            torch.backends.quantized.engine = before

    def forward(self, x: Tensor) -> Tensor:
        made = torch.ops.quantized.linear_dynamic_fp16(x.float(), self.packed)
        if self.to_product:
            torch.zeros(GRAIN * torch.get_num_threads(), dtype=torch.uint8)
        return made


class HalfEmbedding(nn.Module):
    """Tokens (...) -> float32 (..., H): an embedding's rows, kept in float16."""

    def __init__(self, embedding: nn.Embedding):
        super().__init__()
        self.weight = embedding.weight.detach().half()  # no buffer: it is not saved

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight).float()


def _bias(linear: nn.Linear) -> Tensor:
    if linear.bias is None:
        return linear.weight.new_zeros(len(linear.weight)).float()
    return linear.bias.detach().float()
