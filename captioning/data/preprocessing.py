"""How a captioner's images are made, from a file to what its forward takes."""

from typing import Callable, NamedTuple

from PIL import Image
from torch import Tensor

from captioning.data.image import evaluation_transform, normalise, training_transform


class Preprocessing(NamedTuple):
    """evaluation: an RGB image to a float tensor (3, S, S), ready for the captioner. training: an
    image, opened or decoded, to a tensor of one shape for all images, drawing from torch's
    generator. normalise: a batch of what `training` makes, on the captioner's device, to what
    `evaluation` makes, (B, 3, S, S); it is left out where `training` makes floats."""

    evaluation: Callable[[Image.Image], Tensor]
    training: Callable[[Image.Image], Tensor]
    normalise: Callable[[Tensor], Tensor]

    @classmethod
    def of_blip(cls, image_size: int, augmentation: str = "blip") -> "Preprocessing":
        """A square of `image_size` pixels, bicubic, normalised as BLIP's images are."""
        training = training_transform(image_size, augmentation)
        return cls(evaluation_transform(image_size), training, normalise)
