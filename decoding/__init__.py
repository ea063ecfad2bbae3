"""Generates captions: greedy decoding, beam search, sampling, guidance. Needs torch only."""
# ruff: noqa: F401

from decoding.interface import (
    Decoded,
    DecodingSettings,
    Generated,
    SettingsError,
    Step,
    until_end,
)
