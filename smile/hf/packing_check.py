"""Whether a model keeps the texts of a packed row apart, as not every attention or state does."""

from torch import Tensor, nn

from smile.hf.head_table import class_of, version_of

# Classes whose attention transformers masks by position_ids that start again. Recurrent and
# convolutional layers, and attention that reads no positions, carry one text into the next.
DECODERS = """
    Apertus Arcee Cohere Cohere2 CohereCompass Ernie4_5 Ernie4_5_Moe Exaone4 GPTNeoX Gemma Gemma2
    Gemma3 Glm Glm4 Glm4Moe Granite GraniteMoe Helium HyperCLOVAX JetMoe Llama Ministral
    Ministral3 Mistral Mixtral Nemotron Olmo Olmo2 Olmo3 Olmoe Phi Phi3 Phimoe Qwen2 Qwen2Moe
    Qwen3 Qwen3Moe SeedOss SmolLM3 StableLm Starcoder2
"""
READERS = """
    Gemma3 Idefics3 InternVL Llava LlavaNext LlavaOnevision Mistral3 Qwen2VL Qwen2_5_VL Qwen3VL
    Qwen3VLMoe SmolVLM
"""
MASKED = {
    "GPT2LMHeadModel",
    *(f"{name}ForCausalLM" for name in DECODERS.split()),
    *(f"{name}ForConditionalGeneration" for name in READERS.split()),
}
# Of these from transformers 5.0 on; of the others from 4.53, when masks came to read positions.
SINCE_5 = (
    *("GPT2", "GraniteMoe", "JetMoe", "Nemotron", "Olmoe", "Phimoe", "Qwen2Moe", "Qwen2VL"),
    *("Qwen2_5_VL", "StableLm"),
)
THREE_AXES = ("Qwen2VL", "Qwen2_5_VL")  # the text's positions have to stand before these
LINE = (
    "lets captions of a packed row see each other, here or with this attn_implementation; leave "
    "packing and padding_free out"
)


def refuse_leaks(model: nn.Module, inputs: dict, texts: Tensor) -> None:
    """ValueError where a row has several texts, which the model is not known to keep apart.

    texts: (B, N), the number of each token's text. With an attention mask the caller keeps them
    apart.
    """
    if inputs.get("attention_mask") is not None or _keeps_apart(model, inputs, len(texts)):
        return
    if (texts != texts[:, :1]).any():
        raise ValueError(f"{type(model).__name__} {LINE}")


def _keeps_apart(model: nn.Module, inputs: dict, rows: int) -> bool:
    kind, positions = class_of(model), inputs.get("position_ids")
    name = kind.__name__
    if name not in MASKED or not kind.__module__.startswith("transformers."):
        return False
    since = (5, 0) if name.startswith(SINCE_5) else (4, 53)
    if version_of(model) < since:
        return False
    config = getattr(model.config, "text_config", model.config)
    attention = getattr(config, "_attn_implementation", None) or "eager"
    if "flash" in attention:  # reads boundaries too, and finds texts in a single row alone
        return rows == 1 and (positions is not None or inputs.get("cu_seq_lens_q") is not None)
    if positions is None:
        return False
    of_text = len(positions) == 4 if positions.dim() == 3 else not name.startswith(THREE_AXES)
    return of_text and attention in ("eager", "sdpa", "flex_attention")
