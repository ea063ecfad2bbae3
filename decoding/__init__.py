"""Generates captions: greedy decoding, beam search, sampling, guidance. Needs torch only."""

from decoding.decode import decode
from decoding.interface import (
    Decoded,
    DecodingSettings,
    Generated,
    SettingsError,
    Step,
    until_end,
)

__all__ = [
    "Decoded",
    "DecodingSettings",
    "Generated",
    "SettingsError",
    "Step",
    "decode",
    "until_end",
]
