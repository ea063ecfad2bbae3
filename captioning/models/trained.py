"""A captioner out of a checkpoint alone, or out of a configuration and weights from elsewhere."""

from collections.abc import Mapping
from typing import Any, Optional

import torch
from pydantic import ValidationError
from torch import nn

from BLIP import read_checkpoint
from captioning.config import Config, load_config
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError


def load_trained(
    checkpoint: str, config: Optional[str], device: torch.device
) -> tuple[Config, nn.Module]:
    """The configuration and the captioner, in evaluation mode on `device`.

    checkpoint: one that a run left, or any weights; these need `config`, a YAML file, which
    otherwise is the one in the checkpoint. Raises UserError.
    """
    settings = trained_config(checkpoint, config)
    captioner, _ = captioner_from(settings, checkpoint)
    return settings, captioner.to(device).eval()


def trained_config(
    checkpoint: str, config: Optional[str], changes: Optional[Mapping[str, Any]] = None
) -> Config:
    """The configuration alone, see `load_trained`, with other values for some keys."""
    if config is not None:
        return load_config(config, flags=changes)
    try:
        content = read_checkpoint(checkpoint)
    except ValueError as error:
        raise UserError(str(error)) from error
    try:
        found = Config.model_validate(content.get("config"))
    except ValidationError as error:
        raise UserError(
            f"{checkpoint} does not hold the configuration of a run: name one with --config"
        ) from error
    try:
        return Config.model_validate({**found.model_dump(), **(changes or {})})
    except ValidationError as error:
        reasons = (detail["msg"].removeprefix("Value error, ") for detail in error.errors())
        raise UserError("; ".join(reasons)) from error
