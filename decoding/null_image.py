"""The null image, which replaces an image in training for guidance and in the second stream."""

from typing import Callable, Optional

import torch
from torch import Tensor, nn

NULL_IMAGES = ("zeros", "mean", "learnt")


class NullImage(nn.Module):
    """The null image of a captioner. `kind` determines whether it has a parameter or a buffer.

    kind: zeros, in place of the encoder's output; mean, the mean training image, which is encoded
    like any other; learnt, one vector at all positions of the encoder's output. width: the last
    dimension of that output. image_size: S.
    """

    def __init__(self, kind: str, width: int, image_size: int):
        super().__init__()
        self.kind = kind
        # Zeros, so that torch's generator is not advanced. The run or a checkpoint sets the values.
        if kind == "mean":
            self.register_buffer("image", torch.zeros(3, image_size, image_size))
        if kind == "learnt":
            self.vector = nn.Parameter(torch.zeros(width))

    def encode(
        self, encoder: Callable[[Tensor], Tensor], image: Tensor, dropped: Optional[Tensor]
    ) -> Tensor:
        """Return encoded images (B, P, width), with the null image for those `dropped`, bool (B,).

        dropped: None drops no image.
        """
        if dropped is None:
            return encoder(image)
        if self.kind == "mean":
            return encoder(self.image.where(dropped[:, None, None, None], image))
        encoded = encoder(image)
        return self._vector(encoded).where(dropped[:, None, None], encoded)

    def encode_like(self, encoder: Callable[[Tensor], Tensor], encoded: Tensor) -> Tensor:
        """Return the encoded null image, expanded to the shape of `encoded`, (B, P, width)."""
        null = encoder(self.image[None]) if self.kind == "mean" else self._vector(encoded)
        return null.expand_as(encoded)

    def _vector(self, encoded: Tensor) -> Tensor:
        return self.vector.to(encoded) if self.kind == "learnt" else encoded.new_zeros(())
