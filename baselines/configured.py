"""Defines the configuration keys of the classic captioners, and builds one from a configuration."""

from inspect import signature
from typing import Annotated, Any, Literal, Optional

import torch
from pydantic import BaseModel, Field, model_validator
from torch import nn

MODELS = ("rnn", "lstm", "attn", "sat")
SCHEDULES = ("always", "never", "linear", "exponential", "inverse_sigmoid")
ATTENTION_MODELS = ("attn", "sat")
PROMPT_IS_QUESTION = False  # the prompt is the beginning of a caption, not an input of the model


class Keys(BaseModel):
    """The keys that only the classic captioners use. docs/settings.md describes each key.

    A string in an annotation is the key's role, see `captioning.config.keys.ROLES`.
    `captioning.config.config.config_class` merges these keys into a subclass of `Config`, so that
    the validator below can also read the general keys, such as `model` and `lora`.
    """

    encoder: Annotated[str, Field(min_length=1)] = "regnet_x_400mf"
    # The role is "data", so that a resumed run may change this key: it loads the weights from its
    # checkpoint.
    encoder_weights: Annotated[str, Field(min_length=1), "data"] = "default"
    encoder_lr: float = Field(0.0, ge=0)
    encoder_dim: Optional[int] = Field(None, gt=0, le=65_536)
    encoder_size: Optional[int] = Field(None, gt=0, le=1000)
    encoder_norm: bool = False
    encoder_features: Annotated[Optional[str], "speed"] = None
    vocabulary: Literal["words", "wordpiece"] = "words"
    vocabulary_size: int = Field(6400, gt=4)
    min_word_count: int = Field(1, gt=0)
    embed_dim: int = Field(256, gt=0, le=65_536)
    hidden_dim: int = Field(512, gt=0, le=65_536)
    attention_dim: int = Field(512, gt=0, le=65_536)
    num_layers: int = Field(1, gt=0, le=1000)
    deep_output: bool = True
    dropout: float = Field(0.5, ge=0, lt=1)
    word_vectors: Optional[str] = None
    normalise_embeddings: bool = False
    tie_embeddings: bool = False
    embedding_lr: Optional[float] = Field(None, ge=0)
    attention_penalty: float = Field(0.0, ge=0)
    teacher_forcing: Literal[SCHEDULES] = "always"
    teacher_forcing_k: float = Field(10.0, gt=0)
    # The epoch at which the inverse_sigmoid schedule reaches 0.5, as a fraction of max_epoch.
    teacher_forcing_middle: Optional[float] = Field(None, gt=0)

    @model_validator(mode="after")
    def _check_baseline(self):
        if self.lora is not None and self.model in MODELS:
            raise ValueError(f"lora is for models blip and vlm; this one is {self.model}")
        if self.attention_penalty and self.model not in ATTENTION_MODELS:
            raise ValueError(
                f"attention_penalty is {self.attention_penalty}, but model {self.model} has no "
                f"attention; it is for {' and '.join(ATTENTION_MODELS)}"
            )
        if self.num_layers > 1 and self.model in ("rnn", "lstm", "attn"):
            raise ValueError(f"num_layers is {self.num_layers}; {self.model} has one layer")
        # With deep_output, the head's input has width embed_dim.
        has_deep_output = self.model == "sat" and self.deep_output
        ties_embeddings = self.tie_embeddings and self.model in MODELS
        if ties_embeddings and not has_deep_output and self.hidden_dim != self.embed_dim:
            raise ValueError(
                f"tie_embeddings needs equal widths of word vectors and output, but embed_dim is "
                f"{self.embed_dim} and hidden_dim is {self.hidden_dim}"
            )
        if self.encoder_features and (self.encoder_lr or self.augmentation != "none"):
            raise ValueError(
                f"encoder_features is {self.encoder_features}, but cached features are invalid if "
                "the encoder is trained or images are augmented; set encoder_lr to 0 and "
                "augmentation to none"
            )
        k = self.teacher_forcing_k
        if self.teacher_forcing == "exponential" and k >= 1:
            raise ValueError(f"teacher_forcing_k is {k}; with exponential it must be below 1")
        if self.teacher_forcing == "inverse_sigmoid" and k < 1:
            raise ValueError(f"teacher_forcing_k is {k}; with inverse_sigmoid it must be 1 or more")
        middle = self.teacher_forcing_middle
        if middle is not None and self.teacher_forcing != "inverse_sigmoid":
            raise ValueError(
                f"teacher_forcing_middle is {middle}, but teacher_forcing is "
                f"{self.teacher_forcing}; it applies only to inverse_sigmoid"
            )
        return self


def build(config: Any, context: Any) -> nn.Module:
    """Build the captioner that a configuration describes.

    `captioning.captioners.interface.CaptionerPackage` documents the public functions here.
    """
    from baselines.captioner import ClassicCaptioner
    from baselines.decoder import inverse_sigmoid_k
    from baselines.image_encoder import ImageEncoder

    restored = context.content is not None
    if not restored and config.encoder_weights == "none" and config.encoder_lr == 0:
        raise ValueError(
            "encoder_weights is none and encoder_lr is 0: the image encoder would keep its random "
            "weights; set encoder_weights to default, package or a file, or encoder_lr above 0"
        )
    encoder = ImageEncoder(
        name=config.encoder,
        weights="none" if restored else config.encoder_weights,
        dim=config.encoder_dim,
        grid=config.encoder_size,
        norm=config.encoder_norm,
        finetune=config.encoder_lr > 0,
        mean=context.mean,
        std=context.std,
        image_size=config.image_size,
        feature_folder=config.encoder_features,
    )
    arguments = {"encoder": encoder, "tokenizer": _build_tokenizer(config, context)}
    arguments["objective"] = config.build_objective()
    if restored:
        arguments["word_vectors"] = None  # the checkpoint's weights replace them
    if config.teacher_forcing_middle is not None:
        middle = config.teacher_forcing_middle * config.max_epoch
        arguments["teacher_forcing_k"] = inverse_sigmoid_k(middle)
    # Every argument that is not in `arguments` has the name of its configuration key.
    names = signature(ClassicCaptioner).parameters.keys() - arguments
    return ClassicCaptioner(**{name: getattr(config, name) for name in names}, **arguments)


def _build_tokenizer(config: Any, context: Any):
    """Build BERT's tokenizer if `vocabulary` is wordpiece, otherwise a `Vocabulary`.

    The words of the `Vocabulary` come from the checkpoint if it has a vocabulary, otherwise from
    the training captions. Raises ValueError if the checkpoint's vocabulary is not a list of
    strings, even if `vocabulary` is wordpiece.
    """
    from baselines.vocabulary import Vocabulary

    words = context.content.get("vocabulary") if context.content else None
    if words is not None and not (
        isinstance(words, list) and all(isinstance(word, str) for word in words)
    ):
        raise ValueError(f"{context.name}: the vocabulary is not a list of words")
    if config.vocabulary == "wordpiece":
        return context.word_pieces(config.tokenizer)
    if words is not None:
        return Vocabulary(words)
    return Vocabulary.count(
        context.captions(), config.vocabulary_size, config.min_word_count, config.prompt
    )


def origin(config: Any) -> str:
    if config.encoder_weights == "none":
        return "the weights are random"
    return f"the weights are random, except the image encoder's ({config.encoder_weights})"


def title(config: Any) -> str:
    return config.model.upper()


def check_device(config: Any, device: torch.device) -> None:
    if config.precision == "int8":
        raise ValueError(
            f"precision is int8, which {config.model} does not support; try fp32 or bf16"
        )


def preprocessing(config: Any) -> None:
    return None
