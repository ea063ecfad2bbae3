"""Generates captions: greedy decoding, beam search, sampling, guidance. Needs torch only."""

from decoding.decode import decode, generate_captions
from decoding.interface import (
    Decoded,
    DecodingSettings,
    Generated,
    SettingsError,
    Step,
    until_end,
)

draw_captions = generate_captions  # the former name, kept for users' scripts

__all__ = [
    "Decoded",
    "DecodingSettings",
    "Generated",
    "SettingsError",
    "Step",
    "decode",
    "draw_captions",
    "generate_captions",
    "until_end",
]
