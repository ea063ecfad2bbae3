"""Registers the rewards. To add a reward, write a module and add a line to REWARDS."""

import math
from collections.abc import Mapping
from typing import Any

from captioning.metrics.options import missing_options
from captioning.runtime.registry import load

# {reward: "module:class"}
REWARDS = {
    "cider": "captioning.rewards.cider:CiderD",
    "clipscore": "captioning.rewards.clipscore:ClipScoreReward",
    "facts": "captioning.rewards.facts:FactsReward",
    "itm": "captioning.rewards.itm:ItmReward",
}


def check_rewards(weights: Mapping[str, float]) -> None:
    """Raise a one-line ValueError for an unknown name, an impossible weight, or an empty dict.

    weights: {name of a reward: weight of the reward}.
    """
    if not weights:
        raise ValueError(f"reward is empty; name one or more of {', '.join(REWARDS)}")
    for name, weight in weights.items():
        if name not in REWARDS:
            raise ValueError(f"reward {name!r} is unknown; choose from {', '.join(REWARDS)}")
        if not 0 < weight < math.inf:
            raise ValueError(f"reward {name!r} has weight {weight!r}; give a number above 0")


def check_options(weights: Mapping[str, float], config: Any) -> None:
    """Raise a one-line ValueError if `config` lacks an option that a reward requires."""
    for name in weights:
        if problem := missing_options(load(REWARDS[name]), config):
            raise ValueError(f"reward: {name} {problem}")
