"""The learning rate: BLIP's cosine or another schedule, after an optional warm-up by steps."""

import math

from captioning.config import Config


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
    the last. exponential: times lr_decay an epoch. plateau: times lr_decay for each of `plateaus`,
    see `validation_history`. The latter two stay above min_lr.
    """
    c = config
    if c.lr_schedule == "cosine" or step < c.warmup_steps:
        return learning_rate(
            epoch, step, c.max_epoch, c.init_lr, c.min_lr, c.warmup_steps, c.warmup_lr
        )
    if c.lr_schedule == "cosine_steps":
        last = max(c.max_epoch * steps - 1 - c.warmup_steps, 1)
        return c.min_lr + (c.init_lr - c.min_lr) * 0.5 * (
            1 + math.cos(math.pi * (step - c.warmup_steps) / last)
        )
    decays = epoch if c.lr_schedule == "exponential" else plateaus
    return max(c.min_lr, c.init_lr * c.lr_decay**decays)
