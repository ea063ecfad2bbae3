"""What else is published against bland or wrong text, by the name that an objective has.

A new one is a file beside these and a line here; what it must be is in `interface.py`.
"""

from smile.alternatives.dft import Dft
from smile.alternatives.focal import Focal
from smile.alternatives.gem import Gem
from smile.alternatives.interface import Likelihoods, OfLikelihoods, OfLogits, TokenLoss
from smile.alternatives.mixce import MixCe
from smile.alternatives.scalegrad import ScaleGrad
from smile.alternatives.selective_eos import SelectiveEos
from smile.alternatives.tailr import TaiLr
from smile.alternatives.truncation import Truncation
from smile.alternatives.unlikelihood import Unlikelihood

ALTERNATIVES: dict[str, type[TokenLoss]] = {
    "selective_eos": SelectiveEos,
    "unlikelihood": Unlikelihood,
    "focal": Focal,
    "dft": Dft,
    "tailr": TaiLr,
    "mixce": MixCe,
    "gem": Gem,
    "scalegrad": ScaleGrad,
    "truncation": Truncation,
}

__all__ = ["ALTERNATIVES", "Likelihoods", "OfLikelihoods", "OfLogits", "TokenLoss"]
