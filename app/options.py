"""What visitors may choose, in the page and in its API: checkpoints and decoding settings."""

from typing import Any, Optional

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from captioning.config import Config, explained
from captioning.runtime.errors import UserError
from decoding import DecodingSettings

# CSS classes of the controls of one decoding method, see head.html.
BEAMS, SAMPLING = "smile-beams", "smile-sampling"
# {field of `DecodingSettings`: (label, minimum, maximum, step, CSS class)}, with limits so that a
# caption cannot take too long.
SETTINGS = {
    "min_length": ("Shortest caption, tokens", 0, 120, 1, ""),
    "max_length": ("Longest caption, tokens", 1, 120, 1, ""),
    "num_beams": ("Beams", 1, 10, 1, BEAMS),
    "length_penalty": ("Length penalty", -2, 2, 0.1, BEAMS),
    "top_p": ("Nucleus (top-p)", 0.05, 1, 0.05, SAMPLING),
    "top_k": ("Top-k (0: all)", 0, 500, 1, SAMPLING),
    "temperature": ("Temperature", 0.05, 5, 0.05, SAMPLING),
    "repetition_penalty": ("Repetition penalty", 0.2, 5, 0.05, ""),
    "no_repeat_ngram_size": ("Never repeat this many tokens in a row (0: off)", 0, 10, 1, ""),
}
# A visitor's choices. checkpoints: labels; None for all. prompt: the text that a caption starts
# with; None for the checkpoint's own. seed: for sampling; the same seed gives the same caption.
Options = create_model(
    "Options",
    __config__=ConfigDict(extra="forbid", frozen=True),
    checkpoints=(Optional[tuple[str, ...]], None),
    prompt=(Optional[str], Field(None, max_length=200)),
    seed=(int, Field(0, ge=0, lt=2**32)),
    sample=(bool, False),
    **{
        name: (type(step), Field(getattr(DecodingSettings, name), ge=minimum, le=maximum))
        for name, (_, minimum, maximum, step, _) in SETTINGS.items()
    },
)


def read_options(values: dict[str, Any]) -> BaseModel:
    """Return `Options`. values: {field: value}, where None and "" stand for the default.

    Raises UserError for an unknown name or an invalid value.
    """
    given = {name: value for name, value in values.items() if value not in (None, "")}
    try:
        return Options(**given)
    except ValidationError as error:
        raise UserError(explained(error, given)) from None


def default_settings(config: Config) -> dict[str, float]:
    """Return the numbers of SETTINGS in a run's configuration, within their limits."""
    run = config.decoding_settings()
    return {
        name: sorted([minimum, getattr(run, name), maximum])[1]
        for name, (_, minimum, maximum, *_) in SETTINGS.items()
    }
