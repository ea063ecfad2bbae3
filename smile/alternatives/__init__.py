"""Other published objectives against bland or wrong text, by name.

To add one, write a file in this folder with a subclass of a class in `interface.py`, and add a line
here. A file is imported when an objective names it.
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
