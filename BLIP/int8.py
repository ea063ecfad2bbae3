"""Defines linear layers with int8 or 16-bit weights, for captioning on a CPU in int8."""

import torch
from torch import Tensor, nn

from BLIP.inference import InferenceLinear

# torch's engines for quantised layers. An image has hundreds of rows, for which oneDNN is the
# fastest int8 engine. Only FBGEMM supports float16 weights. Where torch has both, it uses FBGEMM by
# default (the engine "x86"), and oneDNN by the name of its ops.
ENGINES = {"onednn", "fbgemm"}
MAX_WEIGHT = 127  # -128 is unused, so that the range is symmetric
GELU_MIN = -0.17  # the minimum of the GELU function


def has_int8(device: torch.device) -> bool:
    """Return whether torch has int8 and float16 kernels for the device."""
    return device.type == "cpu" and set(torch.backends.quantized.supported_engines) >= ENGINES


def check_int8(device: torch.device, compiled: bool) -> None:
    """Raise ValueError if int8 is not supported on the device, or together with `compiled`."""
    if device.type != "cpu":
        raise ValueError(f"precision is int8, which is for CPUs; on {device.type} try bf16")
    if not has_int8(device):
        raise ValueError(
            "precision is int8, but torch has no int8 kernels for this processor; try fp32"
        )
    if compiled:
        raise ValueError(
            "compile is true, which cannot be combined with precision int8; set it to false"
        )


def int8_linear(linear: nn.Linear, name: str) -> nn.Module:
    """Return the layer that replaces `linear`: int8 in the encoder, 16 bits in the decoder.

    name: the full name of the layer in the captioner. The decoder is not int8, because then one
    caption in fourteen changed. If only its keys and values of the image were int8, one caption in
    twenty changed; see docs/benchmarks.md.
    """
    if name.startswith("visual_encoder"):
        # With AMX, attention in bf16 takes half the time.
        bf16_out = torch.cpu._is_amx_tile_supported() and name.endswith("attn.qkv")
        dtype = torch.bfloat16 if bf16_out else torch.float32
        return Int8Linear(linear, after_gelu=name.endswith("mlp.fc2"), dtype=dtype)
    image_kv = name.endswith(("crossattention.self.key", "crossattention.self.value"))
    if image_kv and torch.cpu._is_avx512_bf16_supported():
        # bfloat16 takes half the time, and half the memory for the cached keys and values.
        return InferenceLinear(linear, torch.bfloat16)
    return HalfLinear(linear)


class Int8Linear(nn.Module):
    """An int8 linear layer without gradients: x of any floating type (..., in) -> (..., out).

    Each row of the weight has a fixed scale. Each vector of x gets its own scale in every call, so
    that a caption does not depend on the other images of its batch. after_gelu: whether x is the
    output of a GELU, which is never below -0.17, so that an asymmetric range of codes is more
    accurate. dtype: the dtype of the output.
    """

    def __init__(
        self, linear: nn.Linear, after_gelu: bool = False, dtype: torch.dtype = torch.float32
    ):
        super().__init__()
        weight = linear.weight.detach().float()
        self.scales = weight.abs().amax(1).clamp(min=1e-12) / MAX_WEIGHT
        weight = (weight / self.scales[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(weight, None)
        self.zeros = torch.zeros_like(self.scales, dtype=torch.int64)
        self.bias = linear.bias.detach().float()
        # On a CPU without VNNI, the sum of two products has only 16 bits and would saturate if the
        # codes of x had 8 bits. There, codes have 7 bits.
        max_code = 255 if torch.cpu._is_vnni_supported() else 127
        self.after_gelu = after_gelu
        self.dtype = dtype
        self.zero_point = max_code // 8 if after_gelu else max_code // 2 + 1
        self.max_positive = max_code - self.zero_point
        self.min_scale = -GELU_MIN / self.zero_point if after_gelu else 1e-12
        # A vector of equal values, because addcmul takes twice as long with a scalar. Adding 0.5
        # rounds to the nearest code.
        self.offset = weight.new_full(weight.shape[1:], self.zero_point + 0.5, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().float()  # `out=` below accepts no tensors that require a gradient
        scales = x.amax(-1, keepdim=True)
        if not self.after_gelu:
            scales = torch.maximum(scales, -x.amin(-1, keepdim=True))
        scales = scales.div_(self.max_positive).clamp_(min=self.min_scale)
        codes = torch.addcmul(self.offset, x, scales.reciprocal()).to(torch.uint8)
        product = torch.ops.onednn.qlinear_pointwise(
            codes,
            1.0,  # the scale of the codes
            self.zero_point,
            self.packed,
            self.scales,
            self.zeros,
            None,  # no bias
            1.0,  # scale and zero point of the output
            0,
            torch.float32,
            "none",  # no activation function, and so no arguments of one
            [],
            "",
        )
        return torch.addcmul(self.bias, product, scales, out=product).to(self.dtype)


class HalfLinear(nn.Module):
    """A linear layer with float16 weights: x float32 (..., in) -> float32 (..., out).

    Sums are computed in float32.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight, bias = linear.weight.detach().float(), linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x.float(), self.packed)
