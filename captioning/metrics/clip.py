"""CLIP (Radford et al. 2021): captions and images as vectors that can be compared."""

import hashlib
from os import PathLike
from typing import Any, Optional, Union

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from captioning.data.image import MEAN, STD, load_image
from captioning.metrics.model_files import (
    END,
    START,
    Bpe,
    ModelFiles,
    find_model,
    put_weights,
    read_sizes,
    read_weights,
)
from captioning.metrics.openai_clip import read_openai_clip
from captioning.runtime.errors import UserError, one_line

# Part of what image features are cached under: change it with whatever changes them.
PREPROCESSING = "short side to the model's size, bicubic; centre crop; OpenAI's mean and std"

LONGEST_STRIP = 64  # how many times as long as wide an image is scaled whole

_TOWER = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("hidden_act", "layer_norm_eps"),
)
_TEXT = (*_TOWER, "vocab_size", "max_position_embeddings")
_VISION = (*_TOWER, "image_size", "patch_size", "num_channels")


class Clip:
    """Both towers in float32 on a device, and what turns text and image files into their input.

    source: a hub id, a folder as transformers saves it, or a file of weights in OpenAI's layout.
    Raises UserError for files that are missing or wrong.
    name: the source and the beginning of a hash of the image tower's weights.
    """

    def __init__(self, source: str, device: Union[str, torch.device] = "cpu"):
        files, sizes, state = read_clip(source)
        if not {"text_config", "vision_config"} <= sizes.keys():
            raise UserError(f"{files.config}: clip_model: this is no CLIP model")
        self.tokens = Bpe(files, clip=True)
        self.start, self.end = self.tokens.special(START), self.tokens.special(END)
        self.model, self.max_tokens, self.image_size = _build(
            sizes, state, files, {"bos_token_id": self.start, "eos_token_id": self.end}
        )
        self.width = self.model.visual_projection.out_features
        self.model.eval().requires_grad_(False)
        digest = hashlib.sha256()
        for module in (self.model.vision_model, self.model.visual_projection):
            for name, weight in sorted(module.named_parameters()):
                digest.update(f"{name} {tuple(weight.shape)}".encode())
                digest.update(weight.contiguous().numpy().tobytes())
        self.weights = digest.hexdigest()
        self.name = f"{source}@{self.weights[:8]}"
        self.model.to(device)
        self.device = device
        self.preprocess = transforms.Compose(
            [
                transforms.Resize(self.image_size, InterpolationMode.BICUBIC),
                transforms.CenterCrop(self.image_size),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def encode(self, texts: list[str]) -> tuple[list[list[int]], list[bool]]:
        """Return the ids of each text, marks included, and whether it was too long.

        One that is keeps its beginning and the end mark, whose state stands for the whole.
        """
        room = self.max_tokens - 2
        ids = self.tokens.encode(texts)
        long = [len(text) > room for text in ids]
        return [[self.start, *text[:room], self.end] for text in ids], long

    @torch.inference_mode()
    def text_features(self, ids: list[list[int]]) -> Tensor:
        """Return unit vectors (B, D) of B encoded texts.

        Attention looks back alone, so that what pads the shorter ones changes nothing.
        """
        padded = torch.full((len(ids), max(map(len, ids))), self.end)  # (B, N)
        for row, text in zip(padded, ids):
            row[: len(text)] = torch.tensor(text)
        states = self.model.text_model(input_ids=padded.to(self.device))[0]  # (B, N, W)
        ends = torch.tensor([len(text) - 1 for text in ids], device=states.device)
        pooled = states[torch.arange(len(ids), device=states.device), ends]
        return F.normalize(self.model.text_projection(pooled), dim=-1)

    def read_image(self, path: Union[str, PathLike]) -> Tensor:
        """Return an image file as the tower's input, (3, S, S). Raises UserError."""
        return self.preprocess(_middle(load_image(path)))

    @torch.inference_mode()
    def image_features(self, images: Tensor) -> Tensor:
        """Return unit vectors (B, D) of images (B, 3, S, S)."""
        # On a GPU convolutions alone are otherwise computed in less than float32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            pooled = self.model.vision_model(pixel_values=images.to(self.device))[1]
        return F.normalize(self.model.visual_projection(pooled), dim=-1)


def _middle(image: Image.Image) -> Image.Image:
    """The middle of a strip, of which no more is seen, before it is enlarged to fill the memory."""
    width, height = image.size
    most = LONGEST_STRIP * min(image.size)
    left, top = max(0, width - most) // 2, max(0, height - most) // 2
    return image.crop((left, top, width - left, height - top)) if left or top else image


def read_clip(source: str) -> tuple[ModelFiles, dict[str, Any], Optional[dict[str, Tensor]]]:
    """Return a CLIP's files, its sizes and, of a file in OpenAI's layout, its weights.

    Of a folder as transformers saves it the weights are still to be read. Raises UserError.
    """
    files = find_model("clip_model", source)
    if files.config is None:
        return files, *read_openai_clip(files.weights)
    return files, read_sizes(files), None


def _build(sizes, state, files, marks):
    """Return the model with its weights, the most tokens of a text, and the side of an image."""
    from transformers import CLIPConfig, CLIPModel

    try:
        # Some files have the sizes under both names, of which the second then counts.
        text, vision = (
            {**sizes[f"{tower}_config"], **(sizes.get(f"{tower}_config_dict") or {})}
            for tower in ("text", "vision")
        )
        config = CLIPConfig(
            text_config_dict={**{key: text[key] for key in _TEXT if key in text}, **marks},
            vision_config_dict={key: vision[key] for key in _VISION if key in vision},
            projection_dim=sizes.get("projection_dim", 512),
        )
    except Exception as error:  # newer versions check the sizes, with errors of their own
        problem = f"no sizes of a CLIP ({one_line(error)})"
        raise UserError(f"{files.config}: clip_model: {problem}") from None
    model = CLIPModel(config).float()
    put_weights(model, read_weights(files.weights) if state is None else state, files.weights)
    return model, config.text_config.max_position_embeddings, config.vision_config.image_size
