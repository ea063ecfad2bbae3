"""The captioners that the key `model` can name. Nothing else knows which there are."""

from captioning.captioners.interface import CaptionerPackage
from captioning.runtime.registry import load

# Each names the module of its CaptionerPackage, which is imported when a configuration uses it.
CAPTIONERS: dict[str, str] = {
    "blip": "BLIP.configured",
    **dict.fromkeys(("rnn", "lstm", "attn", "sat"), "baselines.configured"),
    "vlm": "vlm.configured",
}


def package_of(model: str) -> CaptionerPackage:
    """The package of the captioner that `model` names."""
    return load(CAPTIONERS[model])
