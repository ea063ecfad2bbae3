"""Copies a captioner for inference. Weights are cast and packed once instead of at each step."""

import torch
from torch import nn

from adapters.lora import is_adapted, merge_adapter
from BLIP.kernels.inference_linear import float_linear, replace_linears, shared_copy
from BLIP.kernels.int8_linear import HalfEmbedding, int8_linear


def inference_copy(
    captioner: nn.Module, dtype: torch.dtype = torch.float32, pack: bool = True
) -> nn.Module:
    """Return a faster copy of a `BlipCaptioner`, in evaluation mode; see `shared_copy`.

    Linear layers compute in `dtype`, except those for which `keeps_float32` is true. Everything
    else is float32. With torch.int8, `int8_linear` chooses the layers. LoRA is merged. pack:
    prepare the weights for oneDNN; torch.compile needs them as they are.
    """
    inference = shared_copy(captioner)
    if is_adapted(inference):
        merge_adapter(inference)
    if dtype == torch.int8:
        replace_linears(inference, int8_linear)
        embeddings = inference.text_decoder.bert["embeddings"]
        embeddings.word_embeddings = HalfEmbedding(embeddings.word_embeddings)
    else:
        replace_linears(inference, float_linear(dtype, pack))
    return inference
