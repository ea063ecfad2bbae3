"""Scores captions with BLIP's image-text matching (ITM) model, the filter in CapFilt.

Metrics, rewards, filtering and reranking use this module.
"""

from collections.abc import Sequence
from typing import Annotated, Optional, Union

import torch
from PIL import Image
from pydantic import Field, field_serializer
from torch import Tensor
from torch.nn import functional as F

from BLIP.weights.download import without_secrets
from captioning.data.image import evaluation_transform, load_image, normalise
from captioning.files.reading import StrPath
from captioning.metrics.options import Options
from captioning.runtime.errors import UserError


class ItmOptions(Options):
    itm_model: Annotated[Optional[str], "scoring"] = Field(
        None, min_length=1, description="a retrieval checkpoint of BLIP: a path, URL or hf:// name"
    )

    @field_serializer("itm_model")
    def _itm_model_without_secrets(self, value: Optional[str]) -> Optional[str]:
        return without_secrets(value) if isinstance(value, str) else value


class ItmScorer:
    """Scores image-caption pairs with BLIP's matching head or contrastive (ITC) head.

    file: a path, URL or hf:// name of a checkpoint, see `BLIP.itm.load_itm`. dtype: the type of the
    linear layers, except for layers that `BLIP.inference.keeps_float32` keeps in float32. Raises
    UserError.

    Attributes: `model` is a `BLIP.itm.BlipItm`. `report` says what was loaded. `preprocess` maps an
    RGB image to the model's input (3, S, S): resized to a square (bicubic), normalised with `MEAN`
    and `STD` of `captioning.data.image`.
    """

    def __init__(
        self,
        file: str,
        device: Union[str, torch.device] = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        from BLIP.itm import load_itm

        try:
            model, report = load_itm(file)
        except ValueError as error:
            raise UserError(f"itm_model: {error}") from error
        self.report = f"loaded {without_secrets(file)}: {report}"
        self.image_size = model.visual_encoder.patch_embed.img_size[0]
        self.model = model.to(device).for_inference(dtype)
        self.device = torch.device(device)
        self.preprocess = evaluation_transform(self.image_size)

    def read(self, path: StrPath) -> Tensor:
        """Return an image file as the model's input (3, S, S). Raises UserError."""
        return self.preprocess(load_image(path))

    def encode(self, images: Union[Sequence[Image.Image], Tensor]) -> Tensor:
        """Return encoded images (B, 1 + P, width), the input of `BlipItm.match` and `similarity`.

        images: RGB images of any size, or a tensor: uint8 (B, H, W, 3), or float (B, 3, H, W)
        normalised like the output of `preprocess`. A tensor is resized (bicubic) if H or W is not
        the model's image size.
        """
        if not isinstance(images, Tensor):
            images = torch.stack([self.preprocess(image) for image in images])
        images = images.to(self.device, non_blocking=True)
        if images.dtype == torch.uint8:
            images = normalise(images)
        if images.shape[2:] != (self.image_size, self.image_size):
            size = (self.image_size, self.image_size)
            images = F.interpolate(images.float(), size, mode="bicubic", antialias=True)
        # cuDNN's convolutions use TF32 by default, which is less precise than float32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return self.model.encode(images)

    def scores(
        self, images: Union[Sequence[Image.Image], Tensor], captions: Sequence[Sequence[str]]
    ) -> Tensor:
        """Return the probability (B, k), float32, that a caption matches its image.

        images: see `encode`. captions: k captions for each of the B images.
        """
        return self.model.match(self.encode(images), captions)


def check_itm_checkpoint(file: str) -> None:
    """Raise UserError unless `file` is a BLIP checkpoint with the matching and contrastive heads.

    Downloads the checkpoint if necessary.
    """
    from BLIP.itm import check_itm
    from BLIP.weights.checkpoint import read_checkpoint

    try:
        state = read_checkpoint(file, trust_checkpoint=True, mapped=True)["model"]
        check_itm(state, without_secrets(file))
    except ValueError as error:
        raise UserError(f"itm_model: {error}") from error
