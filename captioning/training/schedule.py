"""Builds the optimizer of a run, clips gradients, and computes learning rate schedules."""

import math
from bisect import bisect_right
from typing import Optional

import torch
from torch import Tensor, nn

from captioning.config import Config

OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}


def is_distributed(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor. DTensor is not imported, because the import is slow."""
    return hasattr(tensor, "placements")


def build_optimizer(
    captioner: nn.Module, config: Config
) -> tuple[torch.optim.Optimizer, list[float]]:
    """Return the optimizer, and for each parameter group a factor.

    The factor multiplies the scheduled learning rate. It is 1 for a group without its own rate.
    """
    groups, rate_factors = [], []
    for parameters, own_rate in captioner.parameter_groups():
        groups.append({"params": parameters})
        rate_factors.append(1.0 if own_rate is None else own_rate / config.init_lr)
    optimizer_class = OPTIMIZERS[config.optimizer]
    settings = {"lr": config.init_lr, "weight_decay": config.weight_decay, "fused": True}
    return optimizer_class(groups, **settings), rate_factors


def clip_gradients(
    optimizer: torch.optim.Optimizer, config: Config, correction: Optional[Tensor]
) -> Tensor:
    """Clip the gradient in place, and return its norm before clipping.

    correction: a scalar tensor by which the gradient is multiplied first; None to leave it.
    """
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


def scheduled_rate(config: Config, epoch: int, step: int, steps: int, plateaus: int) -> float:
    """Return the learning rate of optimizer step `step` in epoch `epoch`, by `lr_schedule`.

    - epoch: counted from 0
    - step: counted from 0 over the whole run
    - steps: the number of steps per epoch
    - plateaus: the number of plateaus so far, see `Validation.plateaus`

    In the first `warmup_steps`, the rate grows linearly from warmup_lr to init_lr. Afterwards it
    depends on the schedule:

    - cosine: the rate is constant within an epoch. Over epochs it falls by a half cosine from
      init_lr in epoch 0; one epoch after the last it would be min_lr. Source: the BLIP repository
    - cosine_steps: the rate falls by a half cosine over all steps after the warm-up. The last step
      has min_lr
    - cosine_restarts: there are `lr_cycles` half cosines (SGDR, arXiv 1608.03983). Each half cosine
      is `lr_cycle_growth` times as long as the previous one, and its last step has min_lr
    - exponential: the rate is multiplied by lr_decay after each epoch, but is at least min_lr
    - plateau: the rate is multiplied by lr_decay after each plateau, but is at least min_lr
    """
    schedule, warmup_steps = config.lr_schedule, config.warmup_steps
    if step < warmup_steps:
        return config.warmup_lr + (config.init_lr - config.warmup_lr) * step / warmup_steps
    if schedule in ("exponential", "plateau"):
        decays = epoch if schedule == "exponential" else plateaus
        return max(config.min_lr, config.init_lr * config.lr_decay**decays)
    if schedule == "cosine":
        return _half_cosine(config, epoch, config.max_epoch)
    cycles = config.lr_cycles if schedule == "cosine_restarts" else 1
    position, total = step - warmup_steps, config.max_epoch * steps - warmup_steps
    first, last = _cycle_at(position, total, cycles, config.lr_cycle_growth)
    if first == last:  # the cycle has only this step
        return config.min_lr
    return _half_cosine(config, position - first, last - first)


def _half_cosine(config: Config, position: int, last: int) -> float:
    """Return the rate at `position`: init_lr at position 0, min_lr at position `last`."""
    cosine = math.cos(math.pi * position / last)
    return config.min_lr + (config.init_lr - config.min_lr) * 0.5 * (1 + cosine)


def _cycle_at(step: int, steps: int, cycles: int, growth: float) -> tuple[int, int]:
    """Return the first and last step of the cycle that contains `step`, for 0 <= step < steps.

    `steps` steps are divided into `cycles` cycles. Each cycle is `growth` times as long as the
    previous one.
    """
    lengths = [growth**number for number in range(cycles)]
    starts = [round(steps * sum(lengths[:n]) / sum(lengths)) for n in range(cycles + 1)]
    number = bisect_right(starts, step) - 1
    return starts[number], starts[number + 1] - 1
