"""The learning rate: BLIP's cosine, one value an epoch, after an optional warm-up by steps."""

import math


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
