"""Copies a model for inference. The weights of its linear layers are cast and packed once."""

import copy
from functools import partial
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ITM_HEADS = (".itm_head", ".vision_proj", ".text_proj")  # layers of `BlipItm`


class InferenceLinear(nn.Module):
    """A linear layer without gradients: x of any floating type (..., in) -> `dtype` (..., out).

    pack: store the weight in oneDNN's memory layout if possible. Otherwise oneDNN reorders it in
    every decoding step, which takes longer than the product itself, because a step has only a few
    rows. torch.compile does not support this layout. torch has the ops for it only under private
    names.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, pack: bool = True):
        super().__init__()
        self.dtype = dtype
        weight = linear.weight.detach().to(dtype, copy=True)
        self.packed = pack and weight.is_cpu and torch.backends.mkldnn.is_available()
        if dtype != torch.float32:
            bf16 = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
            self.packed = self.packed and bf16
        # Attributes, not buffers, so that the state dict does not have them.
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self.packed else weight
        self.bias = linear.bias.detach().to(dtype, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


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
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, make(child, f"{prefix}.{name}"))


def float_linear(
    linear: nn.Linear, name: str, dtype: torch.dtype, pack: bool = True
) -> InferenceLinear:
    """Return the layer that replaces `linear`, of this name, to compute in a float `dtype`.

    In bfloat16, the logits of the best words would round to equal values, so that the choice of
    beams would be arbitrary. Therefore the head and the query and output projections of
    cross-attention stay in float32. These layers have a sixth of the weights. docs/benchmarks.md
    says how many captions still differ.
    """
    is_head = "cls.predictions" in name or name.endswith(ITM_HEADS)
    is_cross = "crossattention.self.query" in name or "crossattention.output" in name
    return InferenceLinear(linear, torch.float32 if is_head or is_cross else dtype, pack)
