"""A copy of a captioner that only generates: weights cast and laid out once, not at every step."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adapters.lora import is_adapted, merge
from BLIP.int8_linear import HalfEmbedding, int8_linear
from BLIP.products import has_bf16
from BLIP.static_step import StaticSteps


def inference_copy(
    captioner: nn.Module, dtype: torch.dtype = torch.float32, compiled: bool = False
) -> nn.Module:
    """A `BlipCaptioner` in evaluation mode that generates faster, with the present weights.

    Its linear layers compute in `dtype`, but for those of `in_full`, and all else in float32, as
    under autocast, which it does not need. In torch.int8 the image encoder has weights of 8 bits
    and the decoder of 16, with sums in float32 (`int8_linear`) but for the image's keys and values,
    which are in bfloat16 where the processor has it. The copy holds linear weights of its own and
    shares the others: make a new one when the captioner has learned. compiled: its encoder and
    decoding step are, the step on a GPU into a CUDA graph.
    """
    shared = (*captioner.parameters(), *captioner.buffers(), captioner.tokenizer)
    quick = copy.deepcopy(captioner, {id(thing): thing for thing in shared})
    if is_adapted(quick):
        merge(quick)
    for place, module in list(quick.named_modules()):
        module.__dict__.pop("forward", None)  # fairscale's recomputation, of the original's block
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                full = f"{place}.{name}"
                setattr(module, name, _quick_linear(child, full, dtype, pack=not compiled))
    if dtype == torch.int8:
        embeddings = quick.text_decoder.bert["embeddings"]
        embeddings.word_embeddings = HalfEmbedding(embeddings.word_embeddings)
    if compiled:
        quick.visual_encoder.compile()
        quick.new_step = StaticSteps(mode="reduce-overhead")
    return quick.eval()


def _quick_linear(linear: nn.Linear, name: str, dtype: torch.dtype, pack: bool) -> nn.Module:
    """What takes the place of the layer of that name."""
    if dtype != torch.int8:
        return InferenceLinear(linear, torch.float32 if in_full(name) else dtype, pack)
    of_image = name.endswith(("crossattention.self.key", "crossattention.self.value"))
    if of_image and has_bf16():
        return InferenceLinear(linear, torch.bfloat16)  # half the time, and what a step reads
    return int8_linear(linear, name)


def in_full(layer: str) -> bool:
    """Whether the linear layer of that name computes in float32 in any case.

    In bfloat16 the logits of the best words become equal, and beams a matter of luck. So the head
    stays in float32, and what asks of the image and what it answers: a sixth of the weights. How
    many captions then still differ is in docs/benchmarks.md.
    """
    head = "cls.predictions" in layer
    return head or "crossattention.self.query" in layer or "crossattention.output" in layer


class InferenceLinear(nn.Module):
    """A linear layer without gradients: x of any floating type -> `dtype`.

    pack: into oneDNN's layout where it can be, which torch's compiler cannot read.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, pack: bool = True):
        super().__init__()
        self.dtype = dtype
        weight = linear.weight.detach()
        self.packed = pack and _can_pack(weight.device, dtype)
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype))
        else:
            self.weight = weight.to(dtype, copy=True)  # no buffer: it is not saved
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype, copy=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


def _can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN can keep a weight in its own layout.

    A step of few rows reads every weight for little work; in its own layout oneDNN need not lay
    them out at each step. torch has this for its compiler and under a private name, which is
    looked for first.
    """
    operators, needed = torch.ops.mkldnn, ("_reorder_linear_weight", "_linear_pointwise")
    there = torch.backends.mkldnn.is_available() and all(hasattr(operators, n) for n in needed)
    if device.type != "cpu" or not there:
        return False
    if dtype == torch.bfloat16:
        return operators._is_mkldnn_bf16_supported()
    return dtype == torch.float32
