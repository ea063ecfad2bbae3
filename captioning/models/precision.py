"""Precision: autocast, and the loss scaling that float16 needs."""

import torch

from captioning.captioners.registry import package_of
from captioning.config import Config
from captioning.runtime.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}


class Precision:
    """name: fp32, bf16 or fp16 (float32 weights that autocast casts), or int8, for inference only,
    which the captioner's copy for inference implements."""

    def __init__(self, name: str, device: torch.device):
        self.device = device
        self.dtype = DTYPES[name]
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> torch.autocast:
        enabled = self.dtype in (torch.bfloat16, torch.float16)
        dtype = self.dtype if enabled else None
        return torch.autocast(self.device.type, dtype=dtype, enabled=enabled)


def check_precision(config: Config, device: torch.device) -> None:
    """Raise UserError for a precision that the device does not support."""
    try:
        package_of(config.model).check_device(config, device)
    except ValueError as error:
        raise UserError(str(error)) from error


def check_trains(config: Config) -> None:
    """Raise UserError for a precision without gradients."""
    if config.precision == "int8":
        raise UserError(
            "precision is int8, which is for inference only; train in fp32, bf16 or fp16"
        )
