"""The optimiser of a run, with a learning rate of its own for a classic captioner's encoder."""

from typing import Optional

import torch
from torch import Tensor, nn

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


def clip_gradients(captioner: nn.Module, config: Config, correction: Optional[Tensor]) -> Tensor:
    """Multiply the gradient by `correction`, if given, clip it, and return its norm before that."""
    parameters = [p for p in captioner.parameters() if p.grad is not None]
    gradients = [p.grad for p in parameters]
    if correction is not None:
        torch._foreach_mul_(gradients, correction.float())
    norm = nn.utils.get_total_norm(gradients)
    if config.clip_grad_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, config.clip_grad_norm, norm)
    if config.clip_grad_value is not None:
        nn.utils.clip_grad_value_(parameters, config.clip_grad_value)
    return norm
