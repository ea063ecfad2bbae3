"""The rewards by name."""

import math
from collections.abc import Mapping

from captioning.rewards.cider import CiderD
from captioning.rewards.clipscore import ClipFit
from captioning.rewards.facts import TrueFacts
from captioning.rewards.interface import Reward

REWARDS: dict[str, type[Reward]] = {"cider": CiderD, "clipscore": ClipFit, "facts": TrueFacts}
TITLES = {"cider": "CIDEr-D", "clipscore": "CLIPScore", "facts": "true facts"}


def check_rewards(weights: Mapping[str, float]) -> None:
    """Raise ValueError, in one line, for a name that there is not or a weight that is none."""
    if not weights:
        raise ValueError(f"reward is empty; name one or more of {', '.join(REWARDS)}")
    for name, weight in weights.items():
        if name not in REWARDS:
            raise ValueError(f"reward {name!r} is unknown; choose from {', '.join(REWARDS)}")
        if not 0 < weight < math.inf:
            raise ValueError(f"reward {name!r} has weight {weight!r}; give a number above 0")
