"""Implements the null image, which stands for "no image" in classifier-free guidance.

In training it replaces random images. In decoding, guidance compares the probabilities given an
image with those given the null image; see `decoding.guided`.
"""

from typing import Callable, Optional

import torch
from torch import Tensor, nn

NULL_IMAGES = ("zeros", "mean", "learnt")


class NullImage(nn.Module):
    """The null image of a captioner. The captioner is trained on it and decodes with it.

    kind: one of NULL_IMAGES. "zeros" replaces the encoder's output by zeros. "mean" is the mean
    training image, a buffer, which is encoded like other images. "learnt" is a parameter, one
    vector that replaces the encoder's output at all positions. width: the last dimension of the
    encoder's output. image_size: S, the height and width of images in pixels.
    """

    def __init__(self, kind: str, width: int, image_size: int):
        super().__init__()
        self.kind = kind
        # The initial values are zeros, so that torch's generator is not advanced. Training, or
        # loading a checkpoint, replaces them.
        if kind == "mean":
            self.register_buffer("image", torch.zeros(3, image_size, image_size))
        elif kind == "learnt":
            self.vector = nn.Parameter(torch.zeros(width))

    def encode(
        self, encoder: Callable[[Tensor], Tensor], image: Tensor, dropped: Optional[Tensor]
    ) -> Tensor:
        """Return encoded images (B, P, width), with the null image in place of dropped images.

        image: (B, 3, S, S). dropped: bool (B,), true for images to replace; None replaces none.
        """
        if dropped is None:
            return encoder(image)
        if self.kind == "mean":
            return encoder(self.image.where(dropped[:, None, None, None], image))
        encoded = encoder(image)
        return self._null_vector(encoded).where(dropped[:, None, None], encoded)

    def encode_like(self, encoder: Callable[[Tensor], Tensor], encoded: Tensor) -> Tensor:
        """Return the encoded null image, expanded to the shape of `encoded`, (B, P, width)."""
        null = encoder(self.image[None]) if self.kind == "mean" else self._null_vector(encoded)
        return null.expand_as(encoded)

    def _null_vector(self, encoded: Tensor) -> Tensor:
        """Return the vector (width,), or a scalar zero."""
        return self.vector.to(encoded) if self.kind == "learnt" else encoded.new_zeros(())
