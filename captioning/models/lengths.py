"""Whether a configuration's lengths leave room for a caption."""

from typing import Optional

from captioning.config import Config
from captioning.runtime.errors import UserError


def check_lengths(config: Config, prompt: int, positions: Optional[int] = None) -> None:
    """Raise UserError where max_length or max_tokens does not suit the prompt or the decoder.

    prompt: its tokens, after which a caption must have room. positions: the tokens that the
    decoder can take; None where it takes any number, as recurrent ones do.
    """
    for key, least in {"max_length": prompt + 1, "max_tokens": prompt + 2}.items():
        length = getattr(config, key)
        if length < least or (positions is not None and length > positions):
            limits = f"{least} or more" if positions is None else f"{least} to {positions}"
            model = "" if positions is None else " and this med_config"
            raise UserError(
                f"{key} is {length}; with this prompt, of {prompt} tokens,{model} it must be "
                f"{limits}"
            )
