"""The decoding settings that a visitor can choose, in the page and in its API."""

from typing import Any, Optional

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.checkpoints import Checkpoint
from captioning.runtime.errors import UserError
from decoding import DecodingSettings

MOST_BEAMS, LONGEST = 10, 120
SAMPLING = {"top_p", "top_k", "temperature", "min_p", "typical_p", "seed"}
# Recorded only where they differ from their defaults, which switch them off.
OPTIONAL = {"no_repeat_ngram_size", "min_p", "typical_p", "guidance_scale"}


class Options(BaseModel):
    """Decoding settings within limits that bound the time of a caption, under transformers' names.

    prompt: None is each checkpoint's own. seed: of sampling; it repeats a caption.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sample: bool = False
    num_beams: int = Field(3, ge=1, le=MOST_BEAMS)
    min_length: int = Field(1, ge=0, le=LONGEST)
    max_length: int = Field(40, ge=1, le=LONGEST)
    top_p: float = Field(0.9, gt=0, le=1)
    top_k: int = Field(50, ge=0, le=100_000)
    temperature: float = Field(1.0, ge=0.05, le=5)
    repetition_penalty: float = Field(1.0, ge=0.2, le=5)
    length_penalty: float = Field(1.0, ge=-5, le=5)
    no_repeat_ngram_size: int = Field(0, ge=0, le=LONGEST)
    min_p: float = Field(0.0, ge=0, le=1)
    typical_p: float = Field(1.0, gt=0, le=1)
    guidance_scale: float = Field(1.0, ge=0, le=10)
    seed: int = Field(0, ge=0, lt=2**32)
    prompt: Optional[str] = Field(None, max_length=200)

    def decoding_settings(self) -> DecodingSettings:
        """Raises UserError for a min_length above max_length."""
        names = DecodingSettings.__dataclass_fields__.keys() & type(self).model_fields.keys()
        try:
            return DecodingSettings(**{name: getattr(self, name) for name in names})
        except ValueError as error:
            raise UserError(str(error)) from error

    def used(self) -> dict[str, Any]:
        """The settings that have an effect, for the record of a caption."""
        unused = {"num_beams"} if self.sample else SAMPLING
        off = {name for name in OPTIONAL if getattr(self, name) == getattr(DecodingSettings, name)}
        return self.model_dump(exclude=unused | off)


def read_options(values: dict[str, Any]) -> Options:
    """Validate settings. Raises UserError for an unknown name and a value outside its limits."""
    try:
        return Options(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(Options.model_fields)
            raise UserError(f"{name}: no such setting; there are {known}") from None
        message = first["msg"][0].lower() + first["msg"][1:]
        raise UserError(f"{name} is {first['input']!r}: {message}") from None


def defaults_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The decoding settings of a checkpoint's run, within the page's limits."""
    settings = checkpoint.config.decoding_settings()
    values = {
        name: getattr(settings, name) for name in Options.model_fields if hasattr(settings, name)
    }
    values["num_beams"] = min(values["num_beams"], MOST_BEAMS)
    values["max_length"] = min(values["max_length"], LONGEST)
    return values
