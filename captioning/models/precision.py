"""Sets the precision of a model: autocast, and the loss scaling that float16 needs."""

import torch

from captioning.captioners.registry import package_of
from captioning.config import Config
from captioning.runtime.errors import value_errors_as_user_errors

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}


class Precision:
    """A precision (fp32, bf16, fp16 or int8) on a device.

    With bf16 and fp16, the weights are stored in float32, and autocast casts them. int8 is only for
    inference, and `Captioner.for_inference` implements it. scaler: the loss scaler, which is only
    enabled for fp16.
    """

    def __init__(self, name: str, device: torch.device):
        self.device = device
        self.dtype = DTYPES[name]
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> torch.autocast:
        enabled = self.dtype in (torch.bfloat16, torch.float16)
        dtype = self.dtype if enabled else None
        return torch.autocast(self.device.type, dtype=dtype, enabled=enabled)


@value_errors_as_user_errors()
def check_precision(config: Config, device: torch.device) -> None:
    """Raise UserError if the device does not support the configuration's precision or options."""
    package_of(config.model).check_device(config, device)
