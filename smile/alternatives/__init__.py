"""Lists other published objectives that address bland or wrong text, by name.

To add an objective, write a file in this folder and add a line to ALTERNATIVES: the name, and the
module and class. Subclass a class of `interface.py`: `LikelihoodLoss` for a function of the
probabilities of the label and of the caption's earlier tokens, `WeightedMle` for MLE with detached
weights, `LogitLoss` for a function of all logits. `Objective` imports the file of an alternative
only when the alternative is used.
"""

ALTERNATIVES: dict[str, str] = {
    "selective_eos": "smile.alternatives.selective_eos:SelectiveEos",
    "unlikelihood": "smile.alternatives.unlikelihood:Unlikelihood",
    "focal": "smile.alternatives.focal:Focal",
    "dft": "smile.alternatives.dft:Dft",
    "tailr": "smile.alternatives.tailr:TaiLr",
    "mixce": "smile.alternatives.mixce:MixCe",
    "gem": "smile.alternatives.gem:Gem",
    "scalegrad": "smile.alternatives.scalegrad:ScaleGrad",
    "truncation": "smile.alternatives.truncation:Truncation",
}
