"""Embeds captions and images in one vector space, by CLIP (Radford et al. 2021) or SigLIP 2."""

import hashlib
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Union

import torch
from torch import Tensor
from torch.nn import functional as F

from captioning.data.image import MEAN, STD, load_image
from captioning.metrics.openai_clip import read_openai_clip
from captioning.metrics.pretrained import encodable, load_pretrained
from captioning.runtime.errors import UserError

CLIP_MODEL = "openai/clip-vit-base-patch32"
# Part of the cache key of image features. Change this text if the preprocessing changes.
PREPROCESSING = "short side to the model's size, bicubic; centre crop; OpenAI's mean and std"

MAX_ASPECT_RATIO = 64  # longer images are cropped first: resized, they would take gigabytes


class Clip:
    """Wraps transformers' CLIPModel or SiglipModel, in float32 on a device.

    source: a hub id, a folder in transformers' format, or a file of weights in OpenAI's layout. All
    released CLIPs have one vocabulary: for a file, it is taken from the file's folder or, if that
    has none, from CLIP_MODEL. Raises UserError for missing or wrong files.

    SigLIP's images are resized to a square without cropping. Its texts are lower-cased and padded
    to `max_tokens`, as in training.

    Attributes: `weights` is a hash of the image encoder's weights. `name` is source@HASH, where
    HASH is the first 8 digits of `weights`.
    """

    def __init__(self, source: str, device: Union[str, torch.device] = "cpu"):
        from torchvision import transforms

        path = Path(source)
        if path.is_file():
            self.model = read_openai_clip(path)
            has_words = (path.parent / "vocab.json").is_file()
            words = str(path.parent) if has_words else CLIP_MODEL
            _, self.tokenizer = load_pretrained("clip_model", words, None, "CLIPTokenizerFast")
        else:
            self.model, self.tokenizer = load_pretrained("clip_model", source, "AutoModel")
        config = self.model.config
        if config.model_type not in ("clip", "siglip"):
            raise UserError(f"clip_model: {source} is a {config.model_type}: give a CLIP")
        self.is_siglip = config.model_type == "siglip"
        self.max_tokens = config.text_config.max_position_embeddings
        size = self.image_size = config.vision_config.image_size
        if self.is_siglip:
            resample, statistics = _resample_of(source), ([0.5] * 3, [0.5] * 3)
            resizing = [lambda image: image.resize((size, size), resample)]
        else:
            bicubic, statistics = transforms.InterpolationMode.BICUBIC, (MEAN, STD)
            resizing = [transforms.Resize(size, bicubic), transforms.CenterCrop(size)]
        self.preprocess = transforms.Compose(
            [*resizing, transforms.ToTensor(), transforms.Normalize(*statistics)]
        )
        digest = hashlib.sha256()
        for name, weight in sorted(self.model.named_parameters()):
            if name.startswith("vis"):
                digest.update(f"{name} {tuple(weight.shape)}".encode())
                digest.update(weight.contiguous().numpy().tobytes())
        self.weights = digest.hexdigest()
        self.name = f"{source}@{self.weights[:8]}"
        self.model.to(device)
        self.device = torch.device(device)

    def truncates(self, text: str) -> bool:
        """Return whether a text has more tokens than the model reads."""
        return len(self.tokenizer(self._clean(text), verbose=False).input_ids) > self.max_tokens

    @torch.inference_mode()
    def text_features(self, texts: list[str]) -> Tensor:
        """Return unit vectors (B, D) of B texts. A truncated text keeps its end token."""
        ids = self.tokenizer(
            [self._clean(text) for text in texts],
            padding="max_length" if self.is_siglip else True,
            truncation=True,
            max_length=self.max_tokens,
            return_tensors="pt",
        ).input_ids  # (B, N)
        return _unit_vectors(self.model.get_text_features(ids.to(self.device)))

    def _clean(self, text: str) -> str:
        return encodable(text.lower() if self.is_siglip else text)

    def read_image(self, path: Union[str, PathLike]) -> Tensor:
        """Return an image file as input of the image encoder, (3, S, S). Raises UserError."""
        from torchvision.transforms.functional import center_crop

        image = load_image(path)
        most = MAX_ASPECT_RATIO * min(image.size)
        sides = [min(side, most) for side in (image.height, image.width)]
        return self.preprocess(center_crop(image, sides))

    def renormalise(self, images: Tensor) -> Tensor:
        """Return images for `image_features`. images: (B, 3, S, S), normalised by MEAN and STD."""
        if not self.is_siglip:
            return images
        mean, std = (images.new_tensor(values).view(3, 1, 1) for values in (MEAN, STD))
        return (images * std + mean) / 0.5 - 1

    @torch.inference_mode()
    def image_features(self, images: Tensor) -> Tensor:
        """Return unit vectors (B, D) of images (B, 3, S, S)."""
        # cuDNN's convolutions use TF32 by default, which is less precise than float32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return _unit_vectors(self.model.get_image_features(images.to(self.device)))


@cache
def check_clip(source: str) -> None:
    """Raise UserError if a `Clip` cannot be loaded. One that can is loaded once, and not kept."""
    Clip(source)


def _resample_of(source: str) -> int:
    """Return PIL's number of the filter with which a SigLIP's images are resized."""
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(source).resample
    except OSError:
        raise UserError(f"clip_model: {source} lacks its preprocessor_config.json") from None


def _unit_vectors(features: Any) -> Tensor:
    """Return unit vectors. features: a tensor, or the output object of newer transformers."""
    return F.normalize(getattr(features, "pooler_output", features), dim=-1)
