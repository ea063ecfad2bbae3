"""A captioner out of a checkpoint alone, or out of a configuration and weights from elsewhere."""

from typing import Optional

import torch
from pydantic import ValidationError
from torch import nn

from BLIP import read_checkpoint
from captioning.config import Config, load_config
from captioning.errors import UserError
from captioning.model import captioner_from


def load_trained(
    checkpoint: str, config: Optional[str], device: torch.device
) -> tuple[Config, nn.Module]:
    """The configuration and the captioner, in evaluation mode on `device`.

    checkpoint: one that a run left, or any weights; these need `config`, a YAML file, which
    otherwise is the one in the checkpoint. Raises UserError.
    """
    if config is not None:
        settings = load_config(config)
    else:
        try:
            content = read_checkpoint(checkpoint)
            settings = Config.model_validate(content.get("config"))
        except ValidationError as error:
            raise UserError(
                f"{checkpoint} does not hold the configuration of a run: name one with --config"
            ) from error
        except ValueError as error:
            raise UserError(str(error)) from error
    captioner, _ = captioner_from(settings, checkpoint)
    return settings, captioner.to(device).eval()
