"""Copies a model with linear layers for inference, whose weights are cast and packed only once."""

import copy
from functools import partial
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from BLIP.kernels import matmul

ITM_HEADS = (".itm_head", ".vision_proj", ".text_proj")  # layers of `BlipItm`


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


def shared_copy(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode that shares parameters, buffers and tokenizer.

    Layers that are replaced in it have their own weights, so that further training needs a new
    copy. Autocast is off inside the copy, because autocast would cast every layer.
    """
    shared = (*model.parameters(), *model.buffers(), model.tokenizer)
    copied = copy.deepcopy(model, {id(part): part for part in shared})
    device = next(model.parameters()).device.type
    copied.inference_context = partial(torch.autocast, device, enabled=False)
    return copied.eval()


def replace_linears(model: nn.Module, make: Callable[[nn.Linear, str], nn.Module]) -> None:
    """Replace each linear layer by what `make` returns for the layer and its name."""
    for prefix, module in list(model.named_modules()):
        # fairscale sets the attribute `forward` of a block. Its copy would call the original block.
        module.__dict__.pop("forward", None)
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, make(child, f"{prefix}.{name}"))


def float_linear(dtype: torch.dtype, pack: bool = True) -> Callable[[nn.Linear, str], nn.Module]:
    """Return a function for `replace_linears`. Some layers stay float32, see `keeps_float32`."""

    def make(linear, layer):
        own_dtype = torch.float32 if keeps_float32(layer) else dtype
        return InferenceLinear(linear, own_dtype, pack)

    return make


def keeps_float32(layer: str) -> bool:
    """Return whether the linear layer with this name computes in float32 for any float `dtype`.

    In bfloat16, the logits of the best words would round to equal values, so that the choice of
    beams would be arbitrary. Therefore the head and the query and output projections of
    cross-attention stay in float32. These layers have a sixth of the weights. docs/benchmarks.md
    says how many captions still differ.
    """
    head = "cls.predictions" in layer or layer.endswith(ITM_HEADS)
    return head or "crossattention.self.query" in layer or "crossattention.output" in layer
