"""Mixed precision: what autocast computes in, and the loss scaling that float16 needs."""

import torch

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
    if (config.model, config.precision, device.type) == ("lstm", "fp16", "cpu"):
        raise UserError("precision is fp16, which an LSTM has on a GPU alone; try bf16 or fp32")
