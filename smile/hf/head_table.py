"""Lists, by class, how transformers models compute logits from the output of their head.

For a class that is not in the table, the objective is computed from logits, which is correct for
every model. To add a class, read its forward from the head on, and add a tiny model of the class to
tests/smile/families/.
"""

import sys
from typing import Any, NamedTuple, Optional

from torch import nn


class HeadRow(NamedTuple):
    """How a model computes its logits from the head's output x.

    With z = (x + bias) * scale / divisor, the logits are softcap * tanh(z / softcap) if there is a
    softcap, otherwise z. Each field is the name of a value in the model or its configuration (see
    `value_of`), or None if the model does not have this step. vocabulary: the number of tokens in
    use, if the head has additional rows as padding.
    """

    scale: Optional[str] = None
    divisor: Optional[str] = None
    softcap: Optional[str] = None
    bias: Optional[str] = None
    vocabulary: Optional[str] = None


# A key is the end of class names, followed by the fields of `HeadRow` that are not None. The value
# lists the beginnings of the class names: "Bert" under "LMHeadModel" stands for BertLMHeadModel.
TABLE = {
    "ForCausalLM": """
        AXK1 AXK2 Afmoe Apertus Arcee AriaText BailingHybrid Bart BigBird BigBirdPegasus BioGpt
        BitNet Blenderbot BlenderbotSmall Bloom Camembert CodeGen CpmAnt Cwm Data2VecText Dbrx
        DeepseekV2 DeepseekV32 DeepseekV3 DeepseekV4 DiffLlama Doge Dots1 Dots3Note Electra Ernie4_5
        Ernie4_5_Moe Ernie Exaone4 ExaoneMoe Falcon FalconMamba FlexOlmo Flint Fuyu GPTBigCode GPTJ
        GPTNeo GPTNeoX GPTNeoXJapanese Gemma Git Glm4 Glm4Moe Glm4MoeLite Glm GlmMoeDsa GptOss HYV3
        HYV4 Helium HrmText HunYuanDenseV1 HunYuanMoEV1 Jais2 Jamba JetMoe KimiLinear Kolibri1
        Kosmos2Text Kosmos2_5Text Laguna Lfm2 Lfm2Moe Lfm3 Llama4 Llama LongcatFlash MBart Mamba2
        Mamba Marian MegatronBert Mellum MiMoV2Flash MiniCPM3 MiniMax MiniMaxM2 MiniMaxM3VL
        Ministral3 Ministral Mistral4 Mistral Mixtral Mllama ModernBertDecoder Mpt Mvp Nemotron
        NemotronH OPT Olmo2 Olmo3 Olmo OlmoHybrid Olmoe PLBart Pegasus Persimmon Phi3 Phi4Multimodal
        Phi Phimoe Qwen2 Qwen2Moe Qwen3 Qwen3Moe Qwen3Next Qwen3_5 Qwen3_5Moe Qwen4Exp RemBert
        RoCBert RoFormer Roberta RobertaPreLayerNorm Rwkv SeedOss SmolLM3 SolarOpen StableLm
        Starcoder2 TrOCR Whisper XGLM XLMRoberta XLMRobertaXL Xmod Youtu Zamba2 Zamba Zaya
    """,
    "ForConditionalGeneration": """
        Aria AudioFlamingo3 AyaVision Blip2 Blip Canary Cohere2Vision CohereAsr DeepseekOcr2
        DeepseekVL DeepseekVLHybrid Dots3Note Ernie4_5_VLMoe Ernie4_5_VL_Moe Exaone4_5_ FastVlm
        Florence2 FunAsrNano Gemma3 Glm46V Glm4v Glm4vMoe Glm5Next GlmAsr GlmOcr GotOcr2
        GraniteSpeech GraniteSpeechPlus HunYuanVL Idefics2 Idefics3 InstructBlip InstructBlipVideo
        InternVL Kimi_K25 Kosmos2 Kosmos2_5 KyutaiSpeechToText Lfm2Vl Lfm3Vl LightOnOcr Llama4 Llava
        LlavaNext LlavaNextVideo LlavaOnevision LongT5 M2M100 MT5 MiniCPMOcr MiniCPMV4_6 MiniCPMV4_7
        MiniMaxM3Sparse Mistral3 Mllama Molmo2 Moonshine MoonshineStreaming MossTranscribeDiarize
        MusicFlamingo Nemotron3_5Transcribe NllbMoe Ovis2 PaddleOCRVL PegasusX PerceptionLM
        Pix2Struct QianfanOCR Qwen2Audio Qwen2VL Qwen2_5OmniThinker Qwen2_5_VL Qwen3ASR
        Qwen3OmniMoeThinker Qwen3VL Qwen3VLMoe Qwen3_5 Qwen3_5Moe Qwen4Exp SmolVLM Speech2Text
        Step3p7 SwitchTransformers T5 UMT5 UnlimitedOcr VideoLlama3 VideoLlava VipLlava Voxtral
        VoxtralRealtime Whisper
    """,
    "LMHeadModel": "Bert BlipText CTRL GPT2 OpenAIGPT",
    # Pix2StructText computes the logits of Pix2Struct.
    "Model": "EncoderDecoder SpeechEncoderDecoder VisionEncoderDecoder Pix2StructText",
    "ForCausalLM scale=logit_scale": "Cohere Cohere2 Cohere2Moe CohereCompass",
    "ForConditionalGeneration scale=logit_scale": "CohereCompass",
    "ForCausalLM scale=logits_scaling": "HyperCLOVAX",
    "ForConditionalGeneration scale=logits_scaling": "HyperCLOVAXVisionV2",
    "ForCausalLM scale=lm_head_multiplier": "FalconH1",
    "ForCausalLM divisor=logits_scaling": """
        Granite GraniteMoe GraniteMoeHybrid GraniteMoeShared GraniteMoeSWA GraniteSWA
    """,
    "ForConditionalGeneration divisor=logits_scaling": "Granite4Vision GraniteDocling",
    "ForCausalLM softcap=final_logit_softcapping": """
        Beam Gemma2 Gemma3 Gemma3n Gemma4 Gemma4Unified NanoChat VaultGemma
    """,
    "ForConditionalGeneration softcap=final_logit_softcapping": """
        Gemma3n Gemma4 Gemma4Unified MistralLarge4 PaliGemma T5Gemma T5Gemma2
    """,
    "ForCausalLM softcap=logits_soft_cap": "RecurrentGemma",
    "ForCausalLM softcap=output_logit_soft_cap": "xLSTM",
    "ForConditionalGeneration scale=output_multiplier softcap=final_logit_softcapping": """
        MuseGlimmer MuseSpark
    """,
    "ForConditionalGeneration bias=final_logits_bias": """
        Bart BigBirdPegasus Blenderbot BlenderbotSmall LED MBart Mvp PLBart Pegasus
    """,
    "MTModel bias=final_logits_bias": "Marian",
    "ForCausalLM vocabulary=unpadded_vocab_size": "Inkling",
    "ForConditionalGeneration vocabulary=unpadded_vocab_size": "Inkling",
    "ForCausalLM softcap=final_logit_softcapping vocabulary=unpadded_vocab_size": "Inkling2",
    "ForConditionalGeneration softcap=final_logit_softcapping vocabulary=unpadded_vocab_size": """
        Inkling2
    """,
}
HEADS: dict[str, HeadRow] = {}  # by class name
for _key, _names in TABLE.items():
    _ending, *_fields = _key.split()
    _row = HeadRow(**dict(field.split("=") for field in _fields))
    HEADS.update({f"{name}{_ending}": _row for name in _names.split()})
# Decoders whose own loss does not shift labels: labels[:, n] is the token after position n.
_UNSHIFTED = """
    Bart BigBirdPegasus Blenderbot BlenderbotSmall CpmAnt MBart Marian Mvp PLBart Pegasus TrOCR
    Whisper
"""
UNSHIFTED = {f"{name}ForCausalLM" for name in _UNSHIFTED.split()}
# Classes that add a z-loss (the mean square of the logsumexp of logits) to their loss, each with
# the configuration key of the z-loss's weight. Subclasses of these classes also have a z-loss.
Z_LOSSES = {"BambaForCausalLM": "z_loss_coefficient"}


def classes_of(model: nn.Module) -> tuple[type, ...]:
    """Return the model's class and base classes, without `object`.

    `object` is left out, because Dynamo of torch 2.8 cannot read its name.
    """
    return type(model).__mro__[:-1]


def class_names(model: nn.Module) -> list[str]:
    return [kind.__name__ for kind in classes_of(model)]


def class_of(model: nn.Module) -> type:
    """Return the model's class. Subclasses defined in torch are skipped, because FSDP2 adds one."""
    return next(kind for kind in classes_of(model) if not kind.__module__.startswith("torch."))


def head_row(model: nn.Module) -> Optional[HeadRow]:
    """Return the row of a model's class. None if it is not of transformers or has no row."""
    model_class = class_of(model)
    name = model_class.__name__
    if not model_class.__module__.startswith("transformers."):
        return None
    if name == "PaliGemmaForConditionalGeneration" and version_of(model) < (5, 23):
        return HeadRow()  # it ignores the configuration's cap
    return HEADS.get(name)


def z_loss_weight(model: nn.Module) -> Optional[float]:
    """Return the weight of the model's z-loss. None if it has no z-loss."""
    names = [name for name in class_names(model) if name in Z_LOSSES]
    return value_of(model, Z_LOSSES[names[0]]) if names else None


def value_of(model: nn.Module, name: Optional[str], default: Any = None) -> Any:
    """Return the first value called `name` that is not None in the model and its configurations.

    The order is: the model, its text configuration, its decoder configuration, its configuration.
    Returns `default` if there is no such value or `name` is None.
    """
    config = model.config
    text_config = getattr(config, "text_config", None)
    decoder = getattr(config, "decoder", None)
    for source in (model, text_config, decoder, config):
        value = getattr(source, name, None) if name else None
        if value is not None:
            return value
    return default


def version_of(model: nn.Module) -> tuple[int, int]:
    """Return the version of transformers, (major, minor); (0, 0) for a model of another library."""
    if not any(kind.__module__.startswith("transformers.") for kind in classes_of(model)):
        return 0, 0
    numbers = sys.modules["transformers"].__version__.split(".")
    return int(numbers[0]), int(numbers[1])


def needs_labels_for_mask(model: nn.Module) -> bool:
    """Return whether the model needs labels for a causal attention mask.

    True for PaliGemma and its subclasses before transformers 5.0.
    """
    is_paligemma = any(name.startswith("PaliGemma") for name in class_names(model))
    return is_paligemma and version_of(model) < (5, 0)
