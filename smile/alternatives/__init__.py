"""Other published objectives against bland or wrong text, by name.

A new one is a file beside these, after `interface.py`, and a line here.
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
