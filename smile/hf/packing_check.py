"""Refuses packed rows for models whose attention may mix the texts of a row."""

from torch import Tensor, nn

from smile.hf.head_table import class_of, version_of

# Beginnings of the names of classes for which transformers masks attention across the points where
# position_ids restart. Other models leak one text into the next, through recurrent layers,
# convolutions or attention without such a mask.
DECODERS = """
    Apertus Arcee Cohere Cohere2 CohereCompass Ernie4_5 Ernie4_5_Moe Exaone4 GPTNeoX Gemma Gemma2
    Gemma3 Glm Glm4 Glm4Moe Granite GraniteMoe Helium HyperCLOVAX JetMoe Llama Ministral
    Ministral3 Mistral Mixtral Nemotron Olmo Olmo2 Olmo3 Olmoe Phi Phi3 Phimoe Qwen2 Qwen2Moe
    Qwen3 Qwen3Moe SeedOss SmolLM3 StableLm Starcoder2
"""
CONDITIONAL_GENERATION = """
    Gemma3 Idefics3 InternVL Llava LlavaNext LlavaOnevision Mistral3 Qwen2VL Qwen2_5_VL Qwen3VL
    Qwen3VLMoe SmolVLM
"""
MASKED = {
    "GPT2LMHeadModel",
    *(f"{name}ForCausalLM" for name in DECODERS.split()),
    *(f"{name}ForConditionalGeneration" for name in CONDITIONAL_GENERATION.split()),
}
# Classes whose name begins with one of these need transformers 5.0, other classes need 4.53.
NEW_CLASSES = """
    GPT2 GraniteMoe JetMoe Nemotron Olmoe Phimoe Qwen2Moe Qwen2VL Qwen2_5_VL StableLm
"""
SINCE_5 = tuple(NEW_CLASSES.split())
# Classes with positions on three axes (time, height, width). To separate texts they need text
# positions as a fourth axis: position_ids (4, B, N).
THREE_AXES = ("Qwen2VL", "Qwen2_5_VL")
MIXED_TEXTS_ERROR = (
    "lets captions of a packed row see each other, with this version of transformers or this "
    "attn_implementation; leave packing and padding_free out"
)


def refuse_leaks(model: nn.Module, inputs: dict, texts: Tensor) -> None:
    """Raise ValueError if a row has several texts and the model is not known to separate them.

    inputs: the arguments of the model's forward. texts: (B, N), the number of each token's text. If
    there is an attention mask, the caller has checked that the mask separates the texts.
    """
    if inputs.get("attention_mask") is not None or _separates_texts(model, inputs, len(texts)):
        return
    if (texts != texts[:, :1]).any():
        raise ValueError(f"{type(model).__name__} {MIXED_TEXTS_ERROR}")


def _separates_texts(model: nn.Module, inputs: dict, num_rows: int) -> bool:
    """Return whether attention is known to separate the texts of `num_rows` packed rows."""
    model_class = class_of(model)
    positions = inputs.get("position_ids")
    name = model_class.__name__
    if name not in MASKED or not model_class.__module__.startswith("transformers."):
        return False
    min_version = (5, 0) if name.startswith(SINCE_5) else (4, 53)
    if version_of(model) < min_version:
        return False
    config = getattr(model.config, "text_config", model.config)
    attention = getattr(config, "_attn_implementation", None) or "eager"
    if "flash" in attention:  # FlashAttention separates texts only in a batch of one row
        return num_rows == 1 and (positions is not None or inputs.get("cu_seq_lens_q") is not None)
    if positions is None:
        return False
    has_text_positions = (
        len(positions) == 4 if positions.dim() == 3 else not name.startswith(THREE_AXES)
    )
    return has_text_positions and attention in ("eager", "sdpa", "flex_attention")
