"""A model of transformers: whether it generates text, its special tokens, its labels in step."""

import inspect
import re
from collections.abc import Iterable
from typing import Optional

import torch
from torch import Tensor, nn

from smile.hf.head_table import masks_by_labels

IGNORED = -100
# Names in configurations of the tokens that the features of an image, a video or a sound replace.
MEDIA_TOKENS = tuple(
    f"{medium}_token_{kind}" for medium in ("image", "video", "audio") for kind in ("id", "index")
)
# And of those that labels of an encoder-decoder model can begin with, besides bos_token_id.
OPENING_TOKENS = (
    *("decoder_start_token_id", "forced_bos_token_id", "forced_decoder_ids"),
    *("lang_to_id", "task_to_id", "no_timestamps_token_id", "text_decoder_lang_to_code_id"),
)
MULTILINGUAL = ("mbart", "m2m_100", "nllb-moe", "seamless_m4t", "seamless_m4t_v2")

# Patterns of class names, and why the loss of such a model is not a language-modelling loss.
REFUSED = {
    "MaskedLM": "fills in words",
    "Classification|QuestionAnswering|MultipleChoice|NextSentence|PreTraining": "writes no text",
    "ForCTC|ForRNNT|ForTDT": "aligns sound with text",
    "XLNet|XLMWithLMHead|Flaubert": "reads words in a permuted order",
    "ProphetNet": "predicts several words at a time",
    "Rag(Token|Sequence)": "weighs what several documents say",
    "Csm|HiggsAudio|VibeVoice": "writes sound beside text",
}


def generative(model: nn.Module) -> nn.Module:
    """The model of transformers, without PEFT's around it; ValueError unless it generates text."""
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    name, takes = type(model).__name__, inspect.signature(type(model).forward).parameters
    for pattern, reason in REFUSED.items():
        if re.search(pattern, name):
            raise ValueError(f"{name} {reason}; give a model that generates text")
    if not hasattr(model, "config") or "labels" not in takes:
        raise ValueError(
            f"{name} takes no labels; give a generative model of transformers, "
            "before DDP, FSDP or torch.compile is around it"
        )
    return model


def give_labels(model: nn.Module, labels: Tensor, inputs: dict) -> None:
    """Put labels into `inputs` for a model that masks by them.

    ValueError without token types: its words would see later words even with labels.
    """
    if not masks_by_labels(model):
        return
    if inputs.get("token_type_ids") is None:
        raise ValueError(
            f"{type(model).__name__} before transformers 5.0 masks text by token_type_ids, which "
            "are not in the batch; its processor makes them where it is given suffix=captions"
        )
    inputs["labels"] = labels


def encoder_decoder(model: nn.Module) -> bool:
    """Whether its decoder reads labels shifted right, so that logits are in step with them."""
    configs = (model.config, getattr(model.config, "text_config", None))
    return any(getattr(config, "is_encoder_decoder", False) for config in configs)


def check_tokens(labels: Tensor) -> None:
    """ValueError unless labels are integers (B, N)."""
    if labels.dim() != 2 or labels.is_floating_point():
        found = f"labels of {tuple(labels.shape)} in {labels.dtype}"
        raise ValueError(f"{found}; give captions x tokens, as integers")


def without_media(model: nn.Module, labels: Tensor) -> Tensor:
    """Labels, ignored at the tokens of an image, a video or a sound."""
    return labels.masked_fill(media_of(model, labels), IGNORED)


def media_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """bool (B, N): the tokens that stand for an image, a video or a sound."""
    return is_one_of(tokens, configured(model, *MEDIA_TOKENS))


def opening_tokens(model: nn.Module) -> set[int]:
    """The special tokens that labels of an encoder-decoder model can begin with.

    ValueError where one is of a language that only the tokenizer knows.
    """
    found = configured(model, *OPENING_TOKENS)
    multilingual = model.config.model_type in MULTILINGUAL
    if multilingual and found <= configured(model, "eos_token_id"):
        raise ValueError(
            f"{type(model).__name__}: labels begin with the token of a language, which is in no "
            "configuration; set model.generation_config.forced_bos_token_id, or for several "
            "languages model.generation_config.lang_to_id = {code: id}, or give segments"
        )
    return found | configured(model, "bos_token_id")


def configured(model: nn.Module, *names: str) -> set[int]:
    """The tokens that the model's configurations give by these names."""
    config, found = model.config, set()
    for place in (
        config,
        getattr(config, "text_config", 0),
        getattr(model, "generation_config", 0),
    ):
        for value in (getattr(place, name, None) for name in names):
            value = [*value.values()] if isinstance(value, dict) else value
            for each in value if isinstance(value, (list, tuple)) else [value]:
                found.add(each[-1] if isinstance(each, (list, tuple)) else each)  # its place, it
    return found - {None}


def is_one_of(tokens: Tensor, ids: Iterable[int]) -> Tensor:
    """bool, of the shape of `tokens`; without waiting for an accelerator."""
    among = torch.tensor([*ids], dtype=tokens.dtype).to(tokens.device, non_blocking=True)
    return (tokens.unsqueeze(-1) == among).any(-1)


def in_step(
    model: nn.Module,
    predictions: Tensor,
    labels: Tensor,
    shifted: bool = False,
    tokens: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """Logits or hidden states (B, M, X), M >= N, and labels (B, N), aligned.

    Positions before the text, which are an image's, have no labels and are left out. shifted:
    labels are aligned already. tokens: the model's input (B, N), if known.
    """
    labels = without_media(model, labels.to(predictions.device))
    before = predictions.size(1) - labels.size(1)
    if before < 0:
        raise ValueError(
            f"{labels.size(1)} labels for {predictions.size(1)} predictions; give one each"
        )
    if len(predictions) != len(labels):
        raise ValueError(
            f"labels of {len(labels)} rows for predictions of {len(predictions)}; give one each"
        )
    if encoder_decoder(model):
        return predictions[:, before:], labels
    if tokens is not None and tokens.shape != labels.shape:
        raise ValueError(f"{labels.size(1)} labels for {tokens.size(1)} input_ids; give one each")
    if before > 0 and tokens is not None:
        _check_before(model, tokens, labels)
    if shifted:
        return predictions[:, before:], labels
    return predictions[:, before:-1], labels[:, 1:]


def _check_before(model: nn.Module, tokens: Tensor, labels: Tensor) -> None:
    """Raise ValueError where an image takes more positions than it has tokens, as LLaVA's did
    before transformers 4.45, unless that moves all scored tokens of all rows alike."""
    media = media_of(model, tokens)
    to_come = media.flip(1).cumsum(1).flip(1) > 0  # (B, N), also where the image is
    if (to_come & (labels != IGNORED)).any() or media.sum(1).unique().numel() > 1:
        raise ValueError(
            f"{type(model).__name__} puts more places than tokens of an image between scored words;"
            " let the processor repeat the image's token for each place"
        )


def give_decoder_inputs(model: nn.Module, labels: Tensor, inputs: dict) -> None:
    """Put the decoder's input that an encoder-decoder model makes of its labels into `inputs`."""
    given = (inputs.get("decoder_input_ids"), inputs.get("decoder_inputs_embeds"))
    if not encoder_decoder(model) or any(value is not None for value in given):
        return
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)
        return
    moved = labels.roll(1, dims=1)
    moved[:, 0] = _of_text(model, "decoder_start_token_id")
    inputs["decoder_input_ids"] = moved.where(moved != IGNORED, _of_text(model, "pad_token_id"))


def _of_text(model: nn.Module, name: str) -> int:
    """A token of the configuration, or of the one that it has for text."""
    for config in (model.config, getattr(model.config, "text_config", None)):
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    raise ValueError(f"{type(model).__name__}: set model.config.{name}")
