"""Defines the configuration keys of the classic captioners, and builds one from a configuration."""

from typing import Annotated, Any, Literal, Optional

import torch
import torch.nn.functional as F
from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from torch import nn

NETWORK = "encoder.network."  # before the names of its parameters
SCHEDULES = ("always", "never", "linear", "exponential", "inverse_sigmoid")
PROMPT_IS_QUESTION = False  # the prompt is the beginning of a caption, not an input of the model

Name = Annotated[str, Field(min_length=1)]
Size = Annotated[int, Field(gt=0, le=65_536)]
Small = Annotated[int, Field(gt=0, le=1000)]


class Keys(BaseModel):
    """The keys that only the classic captioners use. docs/settings.md describes each key.

    A string in an annotation is the key's role, see `captioning.config.keys.ROLES`.
    `captioning.config.config.Config` inherits these keys, so that the validator below can also read
    the general keys, such as `model` and `lora`.
    """

    encoder: Name = "regnet_x_400mf"
    # The role is "data", so that a resumed run may change this key: it loads the weights from its
    # checkpoint.
    encoder_weights: Annotated[Name, "data"] = "default"
    encoder_lr: NonNegativeFloat = 0.0
    encoder_dim: Optional[Size] = None
    encoder_size: Optional[Small] = None
    encoder_norm: bool = False
    vocabulary: Literal["words", "wordpiece"] = "words"
    vocabulary_size: int = Field(6400, gt=4)
    min_word_count: PositiveInt = 1
    embed_dim: Size = 256
    hidden_dim: Size = 512
    attention_dim: Size = 512
    num_layers: Small = 1
    deep_output: bool = True
    dropout: float = Field(0.5, ge=0, lt=1)
    word_vectors: Optional[str] = None
    normalise_embeddings: bool = False
    embedding_lr: Optional[NonNegativeFloat] = None
    attention_penalty: NonNegativeFloat = 0.0
    teacher_forcing: Literal[SCHEDULES] = "always"
    teacher_forcing_k: PositiveFloat = 10.0

    @model_validator(mode="after")
    def _check_baseline(self):
        if self.lora is not None and self.model in ("rnn", "lstm", "attn", "sat"):
            raise ValueError(f"lora is for models blip and vlm; this one is {self.model}")
        if self.attention_penalty and self.model not in ("attn", "sat"):
            raise ValueError(
                f"attention_penalty is {self.attention_penalty}, but model {self.model} has no "
                "attention; it is for attn and sat"
            )
        if self.num_layers > 1 and self.model in ("rnn", "lstm", "attn"):
            raise ValueError(f"num_layers is {self.num_layers}; {self.model} has one layer")
        schedule, k = self.teacher_forcing, self.teacher_forcing_k
        if (schedule == "exponential" and k >= 1) or (schedule == "inverse_sigmoid" and k < 1):
            raise ValueError(
                f"teacher_forcing_k is {k} with {schedule}; it must be below 1 with exponential, "
                "and 1 or more with inverse_sigmoid"
            )
        return self


def build(config: Any, context: Any) -> nn.Module:
    """Build the captioner that a configuration describes.

    `captioning.captioners.interface.CaptionerPackage` documents the public functions here.
    """
    from baselines.captioner import ClassicCaptioner
    from baselines.image_encoder import ImageEncoder
    from baselines.vocabulary import load_word_vectors

    restored, state = bool(context.content), context.content.get("model", {})
    if NETWORK + "mean" not in state and any(key.startswith(NETWORK) for key in state):
        raise ValueError(f"{context.name} has torchvision's network; use it with commit 46748d31")
    if not restored and config.encoder_weights == "none" and config.encoder_lr == 0:
        raise ValueError(
            "encoder_weights is none and encoder_lr is 0: the image encoder would keep its random "
            "weights; set encoder_weights to default or a file, or encoder_lr above 0"
        )
    weights = "none" if restored else config.encoder_weights
    encoder = ImageEncoder(config, weights, (context.mean, context.std))
    tokenizer = build_tokenizer(config, context)
    captioner = ClassicCaptioner(config, encoder, tokenizer, config.build_objective())
    if restored:
        return captioner
    embedding = captioner.decoder.embedding
    if config.word_vectors:
        load_word_vectors(embedding, tokenizer, config.word_vectors)
    if config.normalise_embeddings:
        embedding.weight.data = F.normalize(embedding.weight.data, dim=1)
    return captioner


def build_tokenizer(config: Any, context: Any):
    """Build BERT's tokenizer if `vocabulary` is wordpiece, otherwise a `Vocabulary`.

    The words of the `Vocabulary` come from the checkpoint if it has a vocabulary, otherwise from
    the training captions.
    """
    from baselines.vocabulary import Vocabulary

    if config.vocabulary == "wordpiece":
        return context.word_pieces(config.tokenizer)
    if "vocabulary" in context.content:
        return Vocabulary(context.content["vocabulary"])
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
