"""Defines BLIP's configuration keys, and builds its captioner from a configuration."""

from inspect import signature
from typing import Annotated, Any, Literal, Union

import torch
from pydantic import BaseModel, Field, model_validator
from torch import nn

from BLIP.checkpoint import file_content
from BLIP.int8 import check_int8
from BLIP.sizes import MED_CONFIG, VitSizes, check_image_size

LORA_BASE, LORA_MODULE = "pretrained", ""
# The two layers that share a weight. The loss reads the weight directly, so that their adapter
# would have no effect.
LORA_EXCLUDED = (
    "text_decoder.cls.predictions.decoder",
    "text_decoder.bert.embeddings.word_embeddings",
)
PROMPT_IS_QUESTION = False  # the prompt is the beginning of a caption, not an input of the model


class Keys(BaseModel):
    """The keys that only BLIP uses. docs/settings.md describes each key.

    The string in each annotation is the key's role, see `captioning.config.keys.ROLES`.
    `captioning.config.config.Config` inherits these keys, so that the validator below can also read
    the general keys, such as `model` and `lora`.
    """

    vit: Annotated[Union[Literal["base", "large"], VitSizes], "run"] = "base"
    vit_ckpt_layer: Annotated[int, "speed"] = Field(0, ge=0)
    med_config: Annotated[Union[Annotated[str, Field(min_length=1)], dict[str, Any]], "run"] = (
        MED_CONFIG
    )
    first_token_shift: Annotated[bool, "run"] = False

    @model_validator(mode="after")
    def _check_blip(self):
        if self.model != "blip":
            if self.first_token_shift:
                raise ValueError(f"first_token_shift is for model blip; this one is {self.model}")
            return self
        if self.lora and self.lora.load_in_4bit:
            raise ValueError("lora.load_in_4bit is true, which is for model vlm; this one is blip")
        if self.lora and not self.pretrained:
            raise ValueError("lora is set, but pretrained is not: set it to the base weights")
        check_image_size(self.image_size, self.vit)
        return self


def build(config: Any, context: Any) -> nn.Module:
    """Build the captioner that a configuration describes.

    `captioning.captioners.interface.CaptionerPackage` documents the public functions here.
    """
    from BLIP.blip import BlipCaptioner

    # Every argument except `objective` has the name of its configuration key.
    names = signature(BlipCaptioner).parameters.keys() - {"objective"}
    arguments = {name: getattr(config, name) for name in names}
    for key in ("tokenizer", "med_config"):
        arguments[key] = file_content(context.content, key, arguments[key])
    return BlipCaptioner(objective=config.build_objective(), **arguments)


def build_tokenizer(config: Any, context: Any) -> Any:
    return context.word_pieces(config.tokenizer)


def origin(config: Any) -> str:
    return "the weights are random"


def title(config: Any) -> str:
    return "LoRA" if config.lora else ""


def check_device(config: Any, device: torch.device) -> None:
    """Raise ValueError for int8 on a device without int8 kernels, or together with `compile`."""
    if config.precision == "int8":
        check_int8(device, config.compile)


def preprocessing(config: Any) -> None:
    return None
