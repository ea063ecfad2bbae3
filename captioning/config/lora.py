"""Defines the settings of LoRA."""

from typing import Union

from pydantic import BaseModel, ConfigDict, Field


class Lora(BaseModel):
    """The value of the configuration key `lora`.

    - r, alpha, dropout, target_modules: `r`, `lora_alpha`, `lora_dropout` and `target_modules` of
      peft's LoraConfig
    - load_in_4bit: quantise the frozen weights to 4 bits (QLoRA, arXiv 2305.14314)
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    r: int = Field(16, gt=0, le=65_536)
    alpha: float = Field(32.0, gt=0)
    dropout: float = Field(0.05, ge=0, lt=1)
    target_modules: Union[str, list[str]] = Field("all-linear", min_length=1)
    load_in_4bit: bool = False
