"""The optimiser of a run, and gradient clipping."""

from typing import Optional

import torch
from torch import Tensor, nn

from captioning.config import Config
from smile.sharded import is_distributed

OPTIMISERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}


def build_optimizer(
    captioner: nn.Module, config: Config
) -> tuple[torch.optim.Optimizer, list[float]]:
    """The optimiser, and for each group the factor of the scheduled learning rate."""
    groups, shares = [], []
    for parameters, own_rate in captioner.parameter_groups():
        groups.append({"params": parameters})
        shares.append(1.0 if own_rate is None else own_rate / config.init_lr)
    optimiser = OPTIMISERS[config.optimizer]
    settings = {"lr": config.init_lr, "weight_decay": config.weight_decay, "fused": True}
    return optimiser(groups, **settings), shares


def clip_gradients(
    optimizer: torch.optim.Optimizer, config: Config, correction: Optional[Tensor]
) -> Tensor:
    """Multiply the gradient by `correction`, if given, and clip it; its norm before clipping."""
    groups = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"] if p.grad is not None]
    gradients = [p.grad for p in parameters]
    if correction is not None:
        torch._foreach_mul_(gradients, correction.float())
    norm = nn.utils.get_total_norm(gradients)
    norm = norm.full_tensor() if is_distributed(norm) else norm
    if config.clip_grad_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, config.clip_grad_norm, norm)
    if config.clip_grad_value is not None:
        nn.utils.clip_grad_value_(parameters, config.clip_grad_value)
    return norm
