"""How a caption is drawn from a decoder: greedy, beam search, sampling. Needs torch only."""

from decoding.decode import Generated, decode, draw_captions
from decoding.settings import DecodingSettings
from decoding.step import Decoded, Step

__all__ = ["Decoded", "DecodingSettings", "Generated", "Step", "decode", "draw_captions"]
