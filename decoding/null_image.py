"""What a captioner sees in place of an image: in training for guidance, and in its other stream."""

from typing import Callable, Optional

import torch
from torch import Tensor, nn

NULL_IMAGES = ("zeros", "mean", "learnt")


class NullImage(nn.Module):
    """The null image of a captioner: it has weights or a buffer only where `kind` needs them.

    kind: zeros, in place of the encoder's output; mean, the mean training image, which is encoded
    like any other; learnt, one vector at all places of the encoder's output. width: of that output.
    image_size: S.
    """

    def __init__(self, kind: str, width: int, image_size: int):
        super().__init__()
        self.kind = kind
        # Zeros until a checkpoint or a run fills them: they draw nothing from torch's generator.
        if kind == "mean":
            self.register_buffer("image", torch.zeros(3, image_size, image_size))
        if kind == "learnt":
            self.vector = nn.Parameter(torch.zeros(width))

    def encode(
        self, encoder: Callable[[Tensor], Tensor], image: Tensor, dropped: Optional[Tensor]
    ) -> Tensor:
        """Encoded images (B, P, width), the null's where `dropped`, bool (B,), is true."""
        if dropped is None:
            return encoder(image)
        if self.kind == "mean":
            return encoder(self.image.where(dropped[:, None, None, None], image))
        encoded = encoder(image)
        return self._vector(encoded).where(dropped[:, None, None], encoded)

    def like(self, encoder: Callable[[Tensor], Tensor], encoded: Tensor) -> Tensor:
        """The null, encoded once, in the shape of encoded images (B, P, width)."""
        null = encoder(self.image[None]) if self.kind == "mean" else self._vector(encoded)
        return null.expand_as(encoded)

    def _vector(self, encoded: Tensor) -> Tensor:
        return self.vector.to(encoded) if self.kind == "learnt" else encoded.new_zeros(())
