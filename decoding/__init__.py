"""How a caption is drawn from a decoder: greedy, beam search, sampling. Needs torch only."""

from decoding.decode import decode, draw_captions
from decoding.interface import Decoded, DecodingSettings, Generated, Step, until_end

__all__ = [
    "Decoded",
    "DecodingSettings",
    "Generated",
    "Step",
    "decode",
    "draw_captions",
    "until_end",
]
