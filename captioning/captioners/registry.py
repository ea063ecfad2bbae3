"""Lists the captioners that the configuration key `model` can name."""

from captioning.captioners.interface import CaptionerPackage
from captioning.runtime.registry import load

# {name: module of the CaptionerPackage}. The module is imported when a configuration names it.
CAPTIONERS: dict[str, str] = {
    "blip": "BLIP.configured",
    **dict.fromkeys(("rnn", "lstm", "attn", "sat"), "baselines.configured"),
    "vlm": "vlm.configured",
}


def package_of(model: str) -> CaptionerPackage:
    """Import and return the package of the captioner that `model` names."""
    return load(CAPTIONERS[model])
