"""Defines the configuration key of model vlm, and builds its captioner from a configuration."""

from pathlib import PurePosixPath
from typing import Any, Callable, Optional

import torch
from pydantic import BaseModel, Field, model_validator

from vlm.batch import ImageBatch
from vlm.library import check_library
from vlm.prompt import check_guidance, load_prompt_processor

LORA_BASE, LORA_MODULE, LORA_EXCLUDED = "vlm", "model", ()
PROMPT_IS_QUESTION = True  # the prompt is an input of the model, not the beginning of a caption
# Keys that must keep their defaults. transformers generates the captions, and version 5 has no
# groups of beams. A reward needs captions sampled by `decoding`.
UNSUPPORTED = (
    "augmentation",
    "drop_image",
    "rerank",
    "num_beam_groups",
    "reward",
    "compile",
)


class Keys(BaseModel):
    """The key that only this package uses. docs/settings.md describes it.

    `captioning.config.config.Config` inherits the key, so that the validator below can also read
    the general keys, such as `model` and `lora`.
    """

    vlm: Optional[str] = Field(None, min_length=1)

    @model_validator(mode="after")
    def _check_vlm(self):
        if self.model != "vlm":
            if self.vlm is not None:
                raise ValueError(f"vlm is for model vlm; this one is {self.model}")
            return self
        if self.vlm is None:
            raise ValueError("vlm is missing: the folder or hub name of a model of transformers")
        check_guidance(self)
        for key in UNSUPPORTED:
            value, default = getattr(self, key), type(self).model_fields[key].default
            default = "none" if key == "augmentation" else default
            if value != default:
                advice = "unset it" if default is None else f"set it to {default}"
                raise ValueError(f"{key} is {value}, which model vlm does not support; {advice}")
        if self.sharding != "none" and self.lora and self.lora.load_in_4bit:
            raise ValueError(
                f"sharding is {self.sharding}, but 4-bit weights cannot be sharded: set sharding: "
                "none or lora.load_in_4bit: false"
            )
        return self


def build(config: Any, context: Any):
    """Build the captioner that a configuration describes.

    `captioning.captioners.interface.CaptionerPackage` documents the public functions here.
    """
    from vlm.captioner import VlmCaptioner
    from vlm.library import load_model

    prompt_processor = preprocessing(config)[0]
    check_guidance(config, prompt_processor.family)
    four_bit = config.precision if config.lora and config.lora.load_in_4bit else None
    model = load_model(config.vlm, not context.content, four_bit)
    if config.vit_grad_ckpt:
        model.activation_checkpointing_enable({"use_reentrant": False})
    return VlmCaptioner(model, prompt_processor, config.build_objective(), config.max_tokens)


def build_tokenizer(config: Any, context: Any) -> Any:
    from vlm.tokenization import CaptionTokenizer

    prompt_processor, *_ = preprocessing(config)
    end = 0  # any token, since the generation config, which has the end, comes with the weights
    parts = prompt_processor.parts
    return CaptionTokenizer(
        parts.tokenizer, prompt_processor.turn, [end], prompt_processor.image_token
    )


def origin(config: Any) -> str:
    return f"the weights are those of {config.vlm}"


def title(config: Any) -> str:
    return PurePosixPath(config.vlm).name + (" LoRA" if config.lora else "")


def check_device(config: Any, device: torch.device) -> None:
    check_library()
    if config.precision == "int8":
        raise ValueError("precision is int8, which model vlm does not support; try fp32 or bf16")


def preprocessing(config: Any) -> tuple[Callable, ...]:
    """Return the functions that prepare a photo with its prompt for training and for evaluation.

    Both are the model's processor. `ImageBatch` joins their results.
    """
    caption_length = max(config.max_length, config.max_tokens)
    prompt_processor = load_prompt_processor(config.vlm, config.prompt, caption_length)
    return prompt_processor, prompt_processor, ImageBatch
