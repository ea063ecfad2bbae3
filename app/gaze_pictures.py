"""Where a captioner looked, as pictures that lie over the photo."""

import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from captioning.report.picture import data_uri

SIDE = 64  # pixels; the browser stretches it over the photo, whatever that one's shape
STRONGEST = 215  # of 255: at its brightest the photo still shines through


def gaze_pictures(gaze: Tensor) -> list[str]:
    """A data: URI a word of the attention (words, G, G), interpolated; its highest value is white.

    What was not looked at is transparent.
    """
    import matplotlib

    lit = F.interpolate(gaze.unsqueeze(1), size=(SIDE, SIDE), mode="bicubic", align_corners=False)
    lit = lit[:, 0].clamp(min=0)  # (words, SIDE, SIDE)
    lit = (lit / lit.amax((1, 2), keepdim=True).clamp(min=1e-9)).numpy()
    colours = matplotlib.colormaps["inferno"](lit, bytes=True)  # (words, SIDE, SIDE, 4)
    colours[..., 3] = (STRONGEST * lit).astype("uint8")
    return [data_uri(Image.fromarray(frame), "PNG", compress_level=6) for frame in colours]
