"""Other published objectives against bland or wrong text, by name.

To add one, write a file in this folder and add a line here. Subclass a class of `interface.py`:
`LikelihoodLoss` for a function of the label's probability, `WeightedMle` for MLE with detached
weights, `LogitLoss` for a function of all logits. A file is imported when an objective names it.
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
