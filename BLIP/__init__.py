"""BLIP, the captioner that is fine-tuned: image encoder, text decoder, released checkpoints."""

from BLIP.blip import BlipCaptioner, Generated
from BLIP.build import build_captioner
from BLIP.checkpoint import CheckpointError, load_weights, read_checkpoint
from BLIP.inference import inference_copy
from BLIP.tokenizer import CaptionTokenizer, TokenizerError

__all__ = [
    "BlipCaptioner",
    "CaptionTokenizer",
    "CheckpointError",
    "Generated",
    "TokenizerError",
    "build_captioner",
    "inference_copy",
    "load_weights",
    "read_checkpoint",
]
