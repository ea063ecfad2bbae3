"""Copies a captioner for inference. Weights are cast and packed once instead of at each step."""

import copy
from functools import partial

import torch
from torch import nn

from adapters.lora import is_adapted, merge_adapter
from BLIP.kernels.inference_linear import InferenceLinear
from BLIP.kernels.int8_linear import HalfEmbedding, int8_linear

ITM_HEADS = (".itm_head", ".vision_proj", ".text_proj")  # layers of `BlipItm`


def inference_copy(
    captioner: nn.Module, dtype: torch.dtype = torch.float32, pack: bool = True
) -> nn.Module:
    """Return a faster copy of a `BlipCaptioner` or `BlipItm`, in evaluation mode.

    Linear layers compute in `dtype`, except those for which `keeps_float32` is true. Everything
    else is float32. With torch.int8, `int8_linear` chooses the layers. Autocast is off inside the
    copy, because autocast would cast every layer. LoRA is merged.

    The copy has its own linear weights and shares the other parameters, so that further training
    needs a new copy. pack: prepare the weights for oneDNN; torch.compile needs them as they are. A
    `BlipItm` does not support int8.
    """
    shared = (*captioner.parameters(), *captioner.buffers(), captioner.tokenizer)
    inference = copy.deepcopy(captioner, {id(part): part for part in shared})
    if is_adapted(inference):
        merge_adapter(inference)
    for prefix, module in list(inference.named_modules()):
        # fairscale sets the attribute `forward` of a block. Its copy would call the original block.
        module.__dict__.pop("forward", None)
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                layer = f"{prefix}.{name}"
                if dtype == torch.int8:
                    replacement = int8_linear(child, layer)
                else:
                    own_dtype = torch.float32 if keeps_float32(layer) else dtype
                    replacement = InferenceLinear(child, own_dtype, pack)
                setattr(module, name, replacement)
    if dtype == torch.int8:
        embeddings = inference.text_decoder.bert["embeddings"]
        embeddings.word_embeddings = HalfEmbedding(embeddings.word_embeddings)
    device = next(captioner.parameters()).device.type
    inference.inference_context = partial(torch.autocast, device, enabled=False)
    return inference.eval()


def keeps_float32(layer: str) -> bool:
    """Return whether the linear layer with this name computes in float32 for any float `dtype`.

    In bfloat16, the logits of the best words would round to equal values, so that the choice of
    beams would be arbitrary. Therefore the head and the query and output projections of
    cross-attention stay in float32. These layers have a sixth of the weights. docs/benchmarks.md
    says how many captions still differ.
    """
    head = "cls.predictions" in layer or layer.endswith(ITM_HEADS)
    return head or "crossattention.self.query" in layer or "crossattention.output" in layer
