"""The optimiser of a run, with a learning rate of its own for a classic captioner's encoder."""

import torch
from torch import nn

from captioning.config import Config

OPTIMISERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}


def build_optimizer(
    captioner: nn.Module, config: Config
) -> tuple[torch.optim.Optimizer, list[float]]:
    """The optimiser, and for each of its groups the share of the scheduled rate that it gets."""
    own_rate = config.encoder_lr if config.model != "blip" else 0.0
    encoder = list(captioner.encoder.network.parameters()) if own_rate else []
    apart = {id(parameter) for parameter in encoder}
    rest = [p for p in captioner.parameters() if p.requires_grad and id(p) not in apart]
    groups, shares = [{"params": rest}], [1.0]
    if encoder:
        groups.append({"params": encoder})
        shares.append(own_rate / config.init_lr)
    optimiser = OPTIMISERS[config.optimizer]
    settings = {"lr": config.init_lr, "weight_decay": config.weight_decay, "fused": True}
    return optimiser(groups, **settings), shares
