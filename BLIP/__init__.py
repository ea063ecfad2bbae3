"""BLIP: image encoder, text decoder and released checkpoints."""

from BLIP.blip import BlipCaptioner, build_captioner
from BLIP.inference import inference_copy
from BLIP.weights.checkpoint import load_weights, read_checkpoint

__all__ = ["BlipCaptioner", "build_captioner", "inference_copy", "load_weights", "read_checkpoint"]
