"""Provides the BLIP captioner and functions that load the released checkpoints.

Names are imported at first use, so that reading a checkpoint does not import the model.
"""

from adapters.lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "blip": "BlipCaptioner build_captioner",
        "inference": "inference_copy",
        "itm": "load_itm",
        "weights.checkpoint": "load_weights read_checkpoint",
    },
)
