"""Checks that a model of transformers generates text, and aligns its labels with its logits."""

import inspect
import itertools
import re
from collections.abc import Iterable
from typing import Optional

import torch
from torch import Tensor, nn

from smile.hf.head_table import needs_labels_for_mask, value_of

IGNORE_INDEX = -100
# Configuration keys of the tokens that stand for images, videos or sounds.
MEDIA_TOKEN_KEYS = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "audio_token_id",
    "audio_token_index",
)
# Configuration keys of the special tokens, besides bos_token_id, with which the labels of an
# encoder-decoder model can begin.
OPENING_TOKEN_KEYS = (
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_decoder_ids",
    "lang_to_id",
    "task_to_id",
    "no_timestamps_token_id",
    "text_decoder_lang_to_code_id",
)
# The model types whose labels begin with a language's token.
MULTILINGUAL_MODEL_TYPES = ("mbart", "m2m_100", "nllb-moe", "seamless_m4t", "seamless_m4t_v2")

# Patterns of class names, each with the reason why the loss of these classes is not a
# language-modelling loss.
REFUSED_CLASSES = {
    "MaskedLM": "fills in masked words",
    "Classification|QuestionAnswering|MultipleChoice|NextSentence|PreTraining": "writes no text",
    "ForCTC|ForRNNT|ForTDT": "aligns sound with text",
    "XLNet|XLMWithLMHead|Flaubert": "reads words in a permuted order",
    "ProphetNet": "predicts several words at a time",
    "Rag(Token|Sequence)": "mixes predictions from several documents",
    "Csm|HiggsAudio|VibeVoice": "generates sound besides text",
}


def unwrap_generative(model: nn.Module) -> nn.Module:
    """Return the model without PEFT's wrapper.

    Raises ValueError for REFUSED_CLASSES, and if the forward accepts no labels.
    """
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    name = type(model).__name__
    parameters = inspect.signature(type(model).forward).parameters
    for pattern, reason in REFUSED_CLASSES.items():
        if re.search(pattern, name):
            raise ValueError(f"{name} {reason}; give a model that generates text")
    if not hasattr(model, "config") or "labels" not in parameters:
        raise ValueError(
            f"{name} does not accept labels; give a generative model of transformers, before you "
            "wrap it by DDP, FSDP or torch.compile"
        )
    return model


def add_labels_for_mask(model: nn.Module, labels: Tensor, inputs: dict) -> None:
    """Add labels to `inputs`, the batch, if the model needs labels for its attention mask.

    Such a model also needs token_type_ids, because without them caption tokens would attend to
    later tokens. Raises ValueError if the batch lacks them.
    """
    if not needs_labels_for_mask(model):
        return
    if inputs.get("token_type_ids") is None:
        raise ValueError(
            f"{type(model).__name__} before transformers 5.0 masks text by token_type_ids, but "
            "the batch has none; call the processor with suffix=captions to get them"
        )
    inputs["labels"] = labels


def is_encoder_decoder(model: nn.Module) -> bool:
    """Return whether the model is an encoder-decoder. If so, logits at n predict the label at n."""
    configs = (model.config, getattr(model.config, "text_config", None))
    return any(getattr(config, "is_encoder_decoder", False) for config in configs)


def is_media(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return bool (B, N): tokens that stand for an image, a video or a sound."""
    return is_one_of(tokens, configured_ids(model, *MEDIA_TOKEN_KEYS))


def opening_tokens(model: nn.Module) -> set[int]:
    """Return the special tokens with which labels of an encoder-decoder model can begin.

    Raises ValueError for a multilingual model whose configuration lacks the language's token.
    """
    opening = configured_ids(model, *OPENING_TOKEN_KEYS)
    is_multilingual = model.config.model_type in MULTILINGUAL_MODEL_TYPES
    if is_multilingual and opening <= configured_ids(model, "eos_token_id"):
        raise ValueError(
            f"{type(model).__name__}: labels begin with a language's token, which the model's "
            "configuration does not have; set model.generation_config.forced_bos_token_id, or for "
            "several languages model.generation_config.lang_to_id = {code: id}, or give segments"
        )
    return opening | configured_ids(model, "bos_token_id")


def configured_ids(model: nn.Module, *keys: str) -> set[int]:
    """Return the token ids with these keys.

    They come from the configuration, the text configuration and the generation configuration.
    """
    sources = (
        model.config,
        getattr(model.config, "text_config", None),
        getattr(model, "generation_config", None),
    )
    ids = set()
    for source, key in itertools.product(sources, keys):
        values = getattr(source, key, None)
        if isinstance(values, dict):
            values = values.values()
        elif not isinstance(values, (list, tuple)):
            values = [values]
        for token in values:
            # forced_decoder_ids has pairs of a position and a token.
            ids.add(token[-1] if isinstance(token, (list, tuple)) else token)
    return ids - {None}


def is_one_of(tokens: Tensor, ids: Iterable[int]) -> Tensor:
    """Return whether each token is one of `ids`: bool, of the shape of `tokens`.

    This needs no synchronisation with a GPU.
    """
    candidates = torch.tensor([*ids], dtype=tokens.dtype).to(tokens.device, non_blocking=True)
    return (tokens.unsqueeze(-1) == candidates).any(-1)


def align_labels(
    model: nn.Module,
    predictions: Tensor,
    labels: Tensor,
    shifted: bool = False,
    tokens: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """Return predictions and labels of equal length: predictions[:, n] predicts labels[:, n].

    predictions: logits or hidden states (B, M, X); labels: (B, N), M >= N. The first M - N
    predictions belong to positions of an image, which have no labels, and are dropped. shifted:
    whether labels[:, n] already is the token after position n. tokens: the model's input ids
    (B, N), if known. Raises ValueError for labels that cannot be aligned.
    """
    labels = labels.to(predictions.device)
    extra = predictions.size(1) - labels.size(1)
    if extra < 0 or len(predictions) != len(labels):
        shapes = f"{tuple(labels.shape)} for predictions of {tuple(predictions.shape[:2])}"
        raise ValueError(f"labels of {shapes}; give one each")
    if not is_encoder_decoder(model):
        if tokens is not None:
            if tokens.shape != labels.shape:
                raise ValueError(
                    f"{labels.size(1)} labels for {tokens.size(1)} input_ids; give one each"
                )
            if extra:
                _check_media_positions(model, tokens, labels)
        if not shifted:
            return predictions[:, extra:-1], labels[:, 1:]
    return predictions[:, extra:], labels


def _check_media_positions(model: nn.Module, tokens: Tensor, labels: Tensor) -> None:
    """Raise ValueError if labels cannot be aligned, for a model that expands media tokens.

    LLaVA expanded an image token to several positions before transformers 4.45. This is allowed if
    the expansion moves all scored tokens of all rows by the same number of positions.
    """
    is_media_token = is_media(model, tokens)
    # bool (B, N), true at the media tokens and before them.
    precedes_media = is_media_token.flip(1).cumsum(1).flip(1) > 0
    if (precedes_media & (labels != IGNORE_INDEX)).any() or is_media_token.sum(
        1
    ).unique().numel() > 1:
        raise ValueError(
            f"{type(model).__name__} expands an image token to several positions between scored "
            "words; let the processor repeat the image's token for each position"
        )


def add_decoder_inputs(model: nn.Module, labels: Tensor, inputs: dict) -> None:
    """Add decoder_input_ids, the labels shifted right, to the `inputs` of an encoder-decoder model.

    Does nothing for other models, and if the batch has inputs of the decoder. Raises ValueError if
    the configuration lacks a token for them.
    """
    names = "decoder_input_ids", "decoder_inputs_embeds"
    if not is_encoder_decoder(model) or any(inputs.get(name) is not None for name in names):
        return
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(
            labels=labels.clone()  # FSMT changes the labels in place
        )
        return
    start = value_of(model, "decoder_start_token_id")
    pad = value_of(model, "pad_token_id")
    if start is None or pad is None:
        raise ValueError(
            f"{type(model).__name__}: set decoder_start_token_id and pad_token_id of model.config"
        )
    decoder_input_ids = labels.roll(1, dims=1)
    decoder_input_ids[:, 0] = start
    inputs["decoder_input_ids"] = decoder_input_ids.where(decoder_input_ids != IGNORE_INDEX, pad)
