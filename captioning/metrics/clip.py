"""Embeds captions and images in one vector space, by CLIP (Radford et al. 2021) or SigLIP 2.

A Long-CLIP in transformers' format is loaded like any CLIP; it only has more positions.
"""

import hashlib
from collections.abc import Callable
from os import PathLike
from typing import Annotated, Any, Optional, Union

import torch
from PIL import Image
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from captioning.data.image import MEAN, STD, load_image
from captioning.files.reading import read_json
from captioning.metrics.model_files import (
    CLIP_MODEL,
    END,
    START,
    BpeTokenizer,
    ModelFiles,
    find_file,
    find_model,
    load_model,
    read_weights,
)
from captioning.metrics.openai_clip import read_openai_clip
from captioning.metrics.options import Options
from captioning.runtime.errors import UserError

# Part of the cache key of image features. Change this text if the preprocessing changes.
PREPROCESSING = "short side to the model's size, bicubic; centre crop; OpenAI's mean and std"

SIGLIP_1_VOCABULARY = 32000  # the vocabulary size that identifies a SigLIP 1
MAX_ASPECT_RATIO = 64  # images with a larger ratio are cropped before resizing


class ClipOptions(Options):
    clip_model: Annotated[str, "scoring"] = Field(
        CLIP_MODEL,
        min_length=1,
        description="a hub id, a folder, or a file of weights in OpenAI's layout",
    )


class Clip:
    """Wraps transformers' CLIPModel, in float32 on a device, with its tokeniser and preprocessing.

    source: a hub id, a folder in transformers' format, or a file of weights in OpenAI's layout.
    Raises UserError for missing or wrong files.

    Attributes: `weights` is a hash of the image encoder's weights. `name` is source@HASH, where
    HASH is the first 8 digits of `weights`. `width` is D, the size of the vectors.
    """

    image_modules = ("vision_model", "visual_projection")  # the last one determines `width`
    statistics = (MEAN, STD)  # means and standard deviations of the three colours of pixels

    def __init__(self, source: str, device: Union[str, torch.device] = "cpu"):
        from torchvision import transforms

        files, sizes, state = read_clip(source)
        self.load_tokenizer(source, files, sizes)
        state = read_weights(files.weights) if state is None else state
        self.model = load_model("clip_model", files, lambda: self.build_model(sizes), state)
        config = self.model.config
        self.max_tokens = config.text_config.max_position_embeddings
        self.image_size = config.vision_config.image_size
        towers = [getattr(self.model, name) for name in self.image_modules]
        self.width = getattr(towers[-1], "out_features", config.vision_config.hidden_size)
        digest = hashlib.sha256()
        for module in towers:
            for name, weight in sorted(module.named_parameters()):
                digest.update(f"{name} {tuple(weight.shape)}".encode())
                digest.update(weight.contiguous().numpy().tobytes())
        self.weights = digest.hexdigest()
        self.name = f"{source}@{self.weights[:8]}"
        self.model.to(device)
        self.device = device
        self.preprocess = transforms.Compose(
            [*self.crop(), transforms.ToTensor(), transforms.Normalize(*self.statistics)]
        )

    def load_tokenizer(self, source: str, files: ModelFiles, sizes: dict[str, Any]) -> None:
        """Set `tokenizer` and its special tokens. Raises UserError.

        source: for errors. sizes: the content of config.json.
        """
        self.tokenizer = BpeTokenizer(files, style="clip")
        self.start, self.end = self.tokenizer.special(START), self.tokenizer.special(END)

    def build_model(self, sizes: dict[str, Any]) -> torch.nn.Module:
        """Return the model with random weights. sizes: the content of config.json."""
        from transformers import CLIPConfig, CLIPModel

        # Older files have text_config_dict and vision_config_dict, which take precedence.
        text, vision = (
            {**sizes[f"{tower}_config"], **(sizes.get(f"{tower}_config_dict") or {})}
            for tower in ("text", "vision")
        )
        text.update(bos_token_id=self.start, eos_token_id=self.end)
        # transformers 4.15.0 supports only these argument names.
        config = CLIPConfig(
            text_config_dict=text,
            vision_config_dict=vision,
            projection_dim=sizes.get("projection_dim", 512),
        )
        return CLIPModel(config)

    def crop(self) -> list[Callable]:
        """Return the transforms that resize and crop an image to the model's input size."""
        from torchvision import transforms

        size = self.image_size
        return [
            transforms.Resize(size, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(size),
        ]

    def renormalise(self, images: Tensor) -> Tensor:
        """Return images for `image_features`. images: (B, 3, S, S), normalised by MEAN and STD."""
        from torchvision.transforms.functional import normalize

        if self.statistics == (MEAN, STD):
            return images
        shift = [-mean / std for mean, std in zip(MEAN, STD)]
        pixels = normalize(images, shift, [1 / std for std in STD])
        return normalize(pixels, *self.statistics)

    def encode(self, texts: list[str]) -> tuple[list[list[int]], list[bool]]:
        """Return each text's ids with special tokens, and whether the text was truncated.

        A truncated text keeps the end token, because the text embedding is computed from this
        token.
        """
        most = self.max_tokens - 2
        ids = self.tokenizer.encode(texts)
        truncated = [len(text) > most for text in ids]
        return [[self.start, *text[:most], self.end] for text in ids], truncated

    @torch.inference_mode()
    def text_features(self, ids: list[list[int]]) -> Tensor:
        """Return unit vectors (B, D) of B encoded texts.

        A vector is a projection of the hidden state at the end token. Attention is causal, so that
        the padding after the end token has no effect.
        """
        texts = [torch.tensor(text) for text in ids]
        padded = pad_sequence(texts, batch_first=True, padding_value=self.end)  # (B, N)
        states = self.model.text_model(input_ids=padded.to(self.device))[0]  # (B, N, W)
        # get_text_features of transformers 4.15.0 is not used: it would take the token with the
        # highest id for the end token.
        ends = torch.tensor([len(text) - 1 for text in ids], device=states.device)
        pooled = states[torch.arange(len(ids), device=states.device), ends]
        return F.normalize(self.model.text_projection(pooled), dim=-1)

    def read_image(self, path: Union[str, PathLike]) -> Tensor:
        """Return an image file as input of the image encoder, (3, S, S). Raises UserError."""
        return self.preprocess(_crop_extreme_ratio(load_image(path)))

    @torch.inference_mode()
    def image_features(self, images: Tensor) -> Tensor:
        """Return unit vectors (B, D) of images (B, 3, S, S)."""
        # cuDNN's convolutions use TF32 by default, which is less precise than float32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return _unit_vectors(self.model.get_image_features(images.to(self.device)))


class Siglip(Clip):
    """Wraps transformers' SiglipModel, for SigLIP 2 (Tschannen et al. 2025).

    Texts are lower-cased and padded to `max_tokens`, as in training. Images are resized to a square
    without cropping.
    """

    image_modules = ("vision_model",)
    statistics = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

    def load_tokenizer(self, source: str, files: ModelFiles, sizes: dict[str, Any]) -> None:
        if files.merges:
            raise UserError(f"{source}: clip_model: a SigLIP needs its tokenizer.json")
        self.tokenizer = BpeTokenizer(files)
        self.padding = self.tokenizer.backend.token_to_id("<pad>") or 0
        # SigLIP 1 is refused, because it pads with another token.
        if sizes.get("text_config", {}).get("vocab_size", 0) == SIGLIP_1_VOCABULARY:
            raise UserError(f"{source}: clip_model: SigLIP 1 is not supported: choose a SigLIP 2")
        preprocessor = read_json(find_file("clip_model", source, "preprocessor_config.json"))
        self.resample = preprocessor.get("resample", 3)

    def build_model(self, sizes: dict[str, Any]) -> torch.nn.Module:
        from transformers import SiglipConfig, SiglipModel

        return SiglipModel(SiglipConfig(**sizes))

    def crop(self) -> list[Callable]:
        size = (self.image_size, self.image_size)
        return [lambda image: image.resize(size, self.resample)]

    def encode(self, texts: list[str]) -> tuple[list[list[int]], list[bool]]:
        ids = self.tokenizer.encode([text.lower() for text in texts], add_special_tokens=True)
        truncated = [len(text) > self.max_tokens for text in ids]
        # A truncated text keeps its last token, the end token.
        return [
            [*text[: self.max_tokens - 1], text[-1]] if too_long else text
            for text, too_long in zip(ids, truncated)
        ], truncated

    @torch.inference_mode()
    def text_features(self, ids: list[list[int]]) -> Tensor:
        padded = [text + [self.padding] * (self.max_tokens - len(text)) for text in ids]
        return _unit_vectors(self.model.get_text_features(torch.tensor(padded).to(self.device)))


def load_clip(source: str, device: Union[str, torch.device] = "cpu") -> Clip:
    """Return the CLIP or SigLIP of a hub id, a folder or a file. Raises UserError."""
    path = find_model("clip_model", source).config
    config = read_json(path) if path else {}
    is_siglip = isinstance(config, dict) and config.get("model_type") == "siglip"
    return (Siglip if is_siglip else Clip)(source, device)


def _unit_vectors(features: Any) -> Tensor:
    """Return unit vectors. features: a tensor, or the output object of newer transformers."""
    return F.normalize(getattr(features, "pooler_output", features), dim=-1)


def _crop_extreme_ratio(image: Image.Image) -> Image.Image:
    """Crop an image to MAX_ASPECT_RATIO, because resizing a longer one would take much memory.

    CLIP's centre crop would remove the ends of such an image anyway. SigLIP has no centre crop: it
    does not see the ends.
    """
    width, height = image.size
    most = MAX_ASPECT_RATIO * min(image.size)
    left, top = max(0, width - most) // 2, max(0, height - most) // 2
    if left == top == 0:
        return image
    return image.crop((left, top, width - left, height - top))


def read_clip(source: str) -> tuple[ModelFiles, dict[str, Any], Optional[dict[str, Tensor]]]:
    """Return a CLIP's files, the content of config.json, and the weights or None. Raises UserError.

    A file in OpenAI's layout has no config.json, so that its content and the weights are converted
    from the file. For a source with a config.json, the weights are None: the caller reads them.
    """
    files = find_model("clip_model", source)
    if files.config is None:
        return files, *read_openai_clip(files.weights)
    return files, read_json(files.config), None
