"""Models of transformers as a configuration describes them: own keys, and what they make."""

from pathlib import PurePosixPath
from typing import Annotated, Any, Callable, Optional, Union

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from vlm.adapter import adapted
from vlm.library import check_library, recompute
from vlm.pictures import Pictures
from vlm.question import question_of

ASKS = True


class Lora(BaseModel):
    """Layers of low rank that are trained in the place of the model; the names are peft's."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    r: int = Field(16, gt=0, le=65_536)
    alpha: float = Field(32.0, gt=0)
    dropout: float = Field(0.05, ge=0, lt=1)
    target_modules: Union[str, list[str]] = Field("all-linear", min_length=1)


class Keys(BaseModel):
    """The keys of models of transformers alone; docs/settings.md says what each does."""

    vlm: Annotated[Optional[str], Field(min_length=1), "run"] = None
    lora: Annotated[Optional[Lora], "run"] = None

    @model_validator(mode="after")
    def _suit_a_vlm(self):
        if self.model != "vlm":
            given = [name for name in Keys.model_fields if getattr(self, name) is not None]
            if given:
                raise ValueError(f"{given[0]} is for model vlm; this one is {self.model}")
            return self
        if self.vlm is None:
            raise ValueError("vlm is missing: the folder or hub name of a model of transformers")
        if self.augmentation != "none":
            raise ValueError(
                f"augmentation is {self.augmentation}, but a VLM's processor makes its images: set "
                "augmentation: none"
            )
        groups = self.num_beam_groups
        if groups > 1:
            raise ValueError(
                f"num_beam_groups is {groups}; transformers 5 draws beams in one group"
            )
        if self.compile:
            raise ValueError("compile is true, which model vlm has not; set it to false")
        return self


def build(config: Any, context: Any):
    """See `captioning.captioners.interface`, as for the other functions."""
    from vlm.captioner import VlmCaptioner
    from vlm.library import model_of

    question = question_of(config.vlm, config.prompt)
    lora = config.lora
    model = model_of(config.vlm, weights=context.content is None or lora is not None)
    if lora is not None:
        model = adapted(model, lora.model_dump())
    if config.vit_grad_ckpt:
        recompute(model)
    return VlmCaptioner(model, question, config.build_objective(), config.max_tokens)


def origin(config: Any) -> str:
    return f"the weights are those of {config.vlm}"


def title(config: Any) -> str:
    return PurePosixPath(config.vlm).name + (" LoRA" if config.lora else "")


def check_device(config: Any, device: torch.device) -> None:
    check_library()


def preprocessing(config: Any) -> tuple[Callable, ...]:
    """A photo, with its question, is made by the processor, in training as in evaluation."""
    question = question_of(config.vlm, config.prompt)
    return question, question, None, Pictures
