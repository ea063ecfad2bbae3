"""An augmentation that leaves everything in the picture: flips, jittered colours, grain."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import ColorJitter
from torchvision.transforms import functional as F

GRAIN = 64.0  # standard deviation at strength 1, of 255; about that of a photo's own values


def weakly_augmented(image: Image.Image, strength: float) -> Tensor:
    """Flip an RGB image half the time, jitter its colours, add Gaussian noise: uint8 (H, W, 3).

    strength: 0 to 1. Brightness, contrast and saturation, in a random order, are changed by a
    factor between 1 - strength and 1 + strength each; the noise of every value has a standard
    deviation of strength * GRAIN. The hue stays, since captions name colours. Draws from torch's
    generator.
    """
    if torch.rand(()) < 0.5:
        image = F.hflip(image)
    image = ColorJitter(brightness=strength, contrast=strength, saturation=strength)(image)
    pixels = torch.from_numpy(np.array(image))  # (H, W, 3)
    noise = torch.randn(pixels.shape) * (strength * GRAIN)
    return (pixels + noise).round().clamp(0, 255).to(torch.uint8)
