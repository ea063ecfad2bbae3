"""The optimiser of a run, gradient clipping, and the learning rate.

The rate is BLIP's cosine or another schedule, after an optional warm-up by steps.
"""

import math
from bisect import bisect_right
from typing import Optional

import torch
from torch import Tensor, nn

from captioning.config import Config
from smile.head import is_distributed

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


def learning_rate(
    epoch: int,
    step: int,
    max_epoch: int,
    init_lr: float,
    min_lr: float,
    warmup_steps: int = 0,
    warmup_lr: float = 0.0,
) -> float:
    """The rate at optimiser step `step`, counted from 0 over all epochs, in `epoch` (from 0).

    Linear from warmup_lr to init_lr over the warm-up, then half a cosine over the epochs from
    init_lr to min_lr, which it would reach at epoch max_epoch. Source: the BLIP repository.
    """
    if step < warmup_steps:
        return warmup_lr + (init_lr - warmup_lr) * step / warmup_steps
    return min_lr + (init_lr - min_lr) * 0.5 * (1 + math.cos(math.pi * epoch / max_epoch))


def scheduled_rate(config: Config, epoch: int, step: int, steps: int, plateaus: int) -> float:
    """The rate at `step`, as above, under the run's `lr_schedule`; `steps` make an epoch.

    cosine: `learning_rate`. cosine_steps: half a cosine over the steps after the warm-up, min_lr at
    the last. cosine_restarts: `lr_cycles` of these, each `lr_cycle_growth` times as long as the one
    before, min_lr at the last step of each (SGDR, arXiv 1608.03983). exponential: times lr_decay an
    epoch. plateau: times lr_decay for each of `plateaus`, see `validation_history`. The latter two
    stay above min_lr.
    """
    c = config
    if c.lr_schedule == "cosine" or step < c.warmup_steps:
        return learning_rate(
            epoch, step, c.max_epoch, c.init_lr, c.min_lr, c.warmup_steps, c.warmup_lr
        )
    if c.lr_schedule in ("cosine_steps", "cosine_restarts"):
        done, every = step - c.warmup_steps, c.max_epoch * steps - c.warmup_steps
        first, last = 0, every - 1
        if c.lr_schedule == "cosine_restarts":
            first, last = cycle_at(done, every, c.lr_cycles, c.lr_cycle_growth)
        # A cycle of one step is at its minimum, because a run ends at it.
        done, last = (done - first, last - first) if last > first else (1, 1)
        return c.min_lr + (c.init_lr - c.min_lr) * 0.5 * (1 + math.cos(math.pi * done / last))
    decays = epoch if c.lr_schedule == "exponential" else plateaus
    return max(c.min_lr, c.init_lr * c.lr_decay**decays)


def cycle_at(step: int, steps: int, cycles: int, growth: float) -> tuple[int, int]:
    """The first and the last step of the cycle of `step`, which is from 0 to `steps` - 1."""
    lengths = [growth**number for number in range(cycles)]
    starts = [round(steps * sum(lengths[:n]) / sum(lengths)) for n in range(cycles + 1)]
    number = bisect_right(starts, step) - 1
    return starts[number], starts[number + 1] - 1
