"""Mixed precision: what autocast computes in, and the loss scaling that float16 needs."""

import torch

from captioning.captioners.registry import CAPTIONERS
from captioning.config import Config
from captioning.runtime.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """name: fp32, bf16 or fp16. Weights stay in float32; autocast casts them where used."""

    def __init__(self, name: str, device: torch.device):
        self.device = device
        self.dtype = DTYPES[name]
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> torch.autocast:
        enabled = self.dtype != torch.float32
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=enabled)


def check_precision(config: Config, device: torch.device) -> None:
    """Raise UserError for what torch cannot compute."""
    try:
        CAPTIONERS[config.model].check_device(config, device)
    except ValueError as error:
        raise UserError(str(error)) from error
