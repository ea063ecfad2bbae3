"""Computes ITM: how well captions match their images, by BLIP's matching head (Li et al. 2022).

The model is the filter in CapFilt. Rewards, filtering and reranking use it, too.
"""

from collections.abc import Sequence
from typing import Optional, Union

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from BLIP.download import without_secrets
from captioning.data.image import evaluation_transform, load_image
from captioning.files.reading import StrPath
from captioning.metrics.base import CaptionSet, Evaluator, Metric, Scores, option
from captioning.metrics.batches import in_batches
from captioning.runtime.errors import UserError


class Itm(Evaluator):
    """ITM: 100 * the matching head's probability that a caption matches its image.

    ITC: 100 * the cosine of the contrastive embeddings of caption and image.
    """

    metrics = (
        Metric(
            "ITM",
            "ITM",
            meaning="how sure BLIP's filter is that image and caption match",
            unit="%",
        ),
        Metric("ITC", "ITC"),
    )
    options = {
        "itm_model": option(
            Optional[str],
            None,
            "a retrieval checkpoint of BLIP: a path, URL or hf:// name",
            min_length=1,
        )
    }
    required = ("itm_model",)
    needs_images = True

    def check_requirements(self) -> None:
        ItmScorer(self.config.itm_model)

    def evaluate(self, captions: CaptionSet) -> Scores:
        scorer = ItmScorer(self.config.itm_model, self.settings.device)

        def read(image_id):
            return scorer.read(self.settings.images[image_id]), [captions.predictions[image_id]]

        def compute(items):
            images, groups = zip(*items)
            encoded = scorer.encode(torch.stack(images))
            itm, itc = scorer.model.match(encoded, groups), scorer.model.similarity(encoded, groups)
            return torch.cat([itm, itc], 1).cpu().numpy()  # (B, 2)

        size = self.settings.batch_size
        scores = in_batches(captions.ids, compute, size, "BLIP's filter", read)
        columns = (100 * scores.astype(np.float64)).T.tolist()
        settings = {
            "itm_model": without_secrets(self.config.itm_model),
            "itm_truncated": sum(map(scorer.model.truncates, captions.texts)),
        }
        return Scores.from_means(dict(zip(self.metric_names, columns)), settings=settings)


class ItmScorer:
    """Scores image-caption pairs with BLIP's matching head or contrastive (ITC) head.

    file: a path, URL or hf:// name of a checkpoint, see `BLIP.itm.load_itm`. dtype: the type of the
    linear layers, except for those that `float_linear` keeps in float32. Raises
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

    def encode(self, images: Tensor) -> Tensor:
        """Return encoded images (B, 1 + P, width), the input of `BlipItm.match` and `similarity`.

        images: (B, 3, H, W), normalised like the output of `preprocess`. They are resized (bicubic)
        if H or W is not the model's image size.
        """
        images = images.to(self.device, non_blocking=True)
        if images.shape[2:] != (self.image_size, self.image_size):
            size = (self.image_size, self.image_size)
            images = F.interpolate(images.float(), size, mode="bicubic", antialias=True)
        # cuDNN's convolutions use TF32 by default, which is less precise than float32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return self.model.encode(images)

    def scores(self, images: Tensor, captions: Sequence[Sequence[str]]) -> Tensor:
        """Return the probability (B, k), float32, that a caption matches its image.

        images: see `encode`. captions: k captions for each of the B images.
        """
        return self.model.match(self.encode(images), captions)
