"""The captioners that a configuration's `model:` can name. Nothing else knows which there are."""

import baselines.configured
import BLIP.configured
import vlm.configured
from captioning.captioners.interface import CaptionerPackage

CAPTIONERS: dict[str, CaptionerPackage] = {
    "blip": BLIP.configured,
    **dict.fromkeys(baselines.MODELS, baselines.configured),
    "vlm": vlm.configured,
}
