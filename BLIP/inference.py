"""A copy of a captioner that only generates: weights cast and laid out once, not at every step."""

import copy
from functools import partial

import torch
from torch import nn

from adapters.lora import is_adapted, merge
from BLIP.kernels.inference_linear import InferenceLinear
from BLIP.kernels.int8_linear import HalfEmbedding, int8_linear
from BLIP.kernels.static_step import StaticSteps


def inference_copy(
    captioner: nn.Module, dtype: torch.dtype = torch.float32, compiled: bool = False
) -> nn.Module:
    """A `BlipCaptioner` in evaluation mode that generates faster, with the present weights.

    Its linear layers compute in `dtype`, but for those of `in_full`, and all else in float32.
    Autocast, which would spare none of them, is off within it. In torch.int8 the image encoder has
    weights of 8 bits and the decoder of 16, with sums in float32 (`int8_linear`) but for the
    image's keys and values, which are in bfloat16 where the processor has it. The copy holds linear
    weights of its own and shares the others: make a new one when the captioner has learned.
    compiled: its encoder and decoding step are, the step on a GPU into a CUDA graph.
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
    device = next(captioner.parameters()).device.type
    quick.generating = partial(torch.autocast, device, enabled=False)
    if compiled:
        quick.visual_encoder.compile()
        quick.new_step = StaticSteps(mode="reduce-overhead")
    return quick.eval()


def _quick_linear(linear: nn.Linear, name: str, dtype: torch.dtype, pack: bool) -> nn.Module:
    """What takes the place of the layer of that name."""
    if dtype == torch.int8:
        return int8_linear(linear, name)
    return InferenceLinear(linear, torch.float32 if in_full(name) else dtype, pack)


def in_full(layer: str) -> bool:
    """Whether the linear layer of that name computes in float32 in any case.

    In bfloat16 the logits of the best words become equal, and beams a matter of luck. So the head
    stays in float32, and what asks of the image and what it answers: a sixth of the weights. How
    many captions then still differ is in docs/benchmarks.md.
    """
    head = "cls.predictions" in layer
    return head or "crossattention.self.query" in layer or "crossattention.output" in layer
