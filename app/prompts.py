"""A captioner that begins its captions otherwise, for the time of one caption."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Optional

from app.checkpoints import Checkpoint
from captioning.runtime.errors import UserError
from decoding import DecodingSettings


@contextmanager
def prompted(
    checkpoint: Checkpoint, prompt: Optional[str], settings: DecodingSettings
) -> Iterator[None]:
    """Let every caption start with the prompt within the block; None is the captioner's own.

    Raises UserError for a prompt with a word that the captioner has not learned, and where the
    lengths leave no room for a caption after it.
    """
    captioner = checkpoint.captioner
    before = captioner.prompt, captioner.prompt_ids
    try:
        if prompt is not None:
            captioner.prompt_ids = captioner.tokenizer.encode_prompt(prompt)
            if captioner.tokenizer.unknown in captioner.prompt_ids:
                raise UserError(
                    f"prompt: {checkpoint.label} has not learned a word of {prompt.strip()!r}"
                )
            # What is cut off a caption is the prompt as the tokenizer writes it.
            written = captioner.tokenizer.decode(captioner.prompt_ids)
            captioner.prompt = f"{written} " if written else ""
        _check_lengths(checkpoint, settings)
        yield
    finally:
        captioner.prompt, captioner.prompt_ids = before


def _check_lengths(checkpoint: Checkpoint, settings: DecodingSettings) -> None:
    captioner, longest = checkpoint.captioner, settings.max_length
    least = len(captioner.prompt_ids) + 1
    if longest < least:
        raise UserError(
            f"max_length is {longest}; with {checkpoint.label}'s prompt, of {least - 1} tokens, it "
            f"must be {least} or more"
        )
    most = captioner.max_positions
    if most is not None and longest > most:
        raise UserError(f"max_length is {longest}; {checkpoint.label} has room for {most} tokens")
