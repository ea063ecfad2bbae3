"""Validates, with pydantic, the sizes of a model that a configuration may set.

This module does not import timm or transformers, so that a configuration is read in less time.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Optional, Union

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

MED_CONFIG = "configs/med_config.json"
REPOSITORY = Path(__file__).resolve().parent.parent


class Sizes(BaseModel):
    """The base class of `MedConfig` and `VitSizes`. Refuses unknown keys, NaN and wrong types.

    WIDTH, HEADS: the names of the width and of the number of heads, which has to divide it.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    WIDTH: ClassVar[str]
    HEADS: ClassVar[str]

    @model_validator(mode="after")
    def _heads_divide_width(self):
        if getattr(self, self.WIDTH) % getattr(self, self.HEADS):
            raise ValueError(f"{self.WIDTH} must be a multiple of {self.HEADS}")
        return self

    @classmethod
    def read(cls, key: str, values: Mapping[str, Any]) -> "Sizes":
        """Build sizes from a mapping. Raises a one-line ValueError.

        key: the configuration key that has the mapping, for the message.
        """
        for name in values.keys() - cls.model_fields.keys():
            known = ", ".join(cls.model_fields)
            raise ValueError(f"{key}: unknown key {name!r}; known keys are {known}")
        try:
            return cls(**values)
        except ValidationError as error:
            detail = error.errors()[0]
            where = ".".join(map(str, (key, *detail["loc"])))
            message = detail["msg"].removeprefix("Value error, ")
            found = f"found {detail['input']!r}; " if detail["loc"] else ""
            raise ValueError(f"{where}: {found}{message}") from error


class VitSizes(Sizes):
    """Hyperparameters of a vision transformer, with timm's names where timm has a name.

    initializer_range: the standard deviation of the initial weights in the blocks. None leaves
    timm's 0.02. Narrow encoders learn faster with about embed_dim**-0.5. A value also changes the
    initial position embedding, to a standard deviation of 1, which is that of the patch embeddings.
    """

    WIDTH, HEADS = "embed_dim", "num_heads"

    embed_dim: int = Field(gt=0, le=65_536)
    depth: int = Field(gt=0, le=1000)
    num_heads: int = Field(gt=0)
    patch_size: int = Field(16, gt=0)
    mlp_ratio: float = Field(4.0, gt=0, le=1000)
    drop_path_rate: float = Field(0.0, ge=0, lt=1)
    layer_norm_eps: float = Field(1e-6, gt=0)
    initializer_range: Optional[float] = Field(None, gt=0)


VIT_SIZES = {
    "base": VitSizes(embed_dim=768, depth=12, num_heads=12),
    "large": VitSizes(embed_dim=1024, depth=24, num_heads=16, drop_path_rate=0.1),
}


def check_image_size(image_size: int, vit: Union[str, Mapping, VitSizes]) -> None:
    """Raise ValueError for an image size that is not a multiple of the encoder's patch size."""
    patch = vit_sizes(vit).patch_size
    if image_size % patch:
        raise ValueError(f"image_size is {image_size}; it must be a multiple of {patch}")


def vit_sizes(vit: Union[str, Mapping, VitSizes]) -> VitSizes:
    """Return the sizes that a name or a mapping gives. Raises ValueError."""
    if isinstance(vit, VitSizes):
        return vit
    if isinstance(vit, Mapping):
        return VitSizes.read("vit", vit)
    if vit not in VIT_SIZES:
        raise ValueError(f"vit is {vit!r}; it must be {', '.join(VIT_SIZES)} or a mapping of sizes")
    return VIT_SIZES[vit]


class MedConfig(Sizes):
    """Sizes of the text decoder, or of the text encoder of BLIP's filter, under BERT's names.

    The defaults are those of bert-base.
    """

    WIDTH, HEADS = "hidden_size", "num_attention_heads"

    hidden_size: int = Field(768, gt=0)
    num_hidden_layers: int = Field(12, gt=0)
    num_attention_heads: int = Field(12, gt=0)
    intermediate_size: int = Field(3072, gt=0)
    max_position_embeddings: int = Field(512, gt=0)
    layer_norm_eps: float = Field(1e-12, ge=0)
    hidden_dropout_prob: float = Field(0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(0.1, ge=0, lt=1)
    initializer_range: float = Field(0.02, ge=0)
    hidden_act: Literal["gelu"] = "gelu"


# Keys of BERT's configuration that are ignored. The tokenizer determines vocab_size, the image
# encoder determines encoder_width, and the other keys do not vary between captioning decoders.
IGNORED_KEYS = {
    "architectures",
    "model_type",
    "type_vocab_size",
    "pad_token_id",
    "vocab_size",
    "encoder_width",
    "add_cross_attention",
}


def read_med_config(source: Union[str, Path, Mapping]) -> MedConfig:
    """Read sizes from a JSON file or a mapping. Missing keys get their default values.

    A relative path is searched first in the working directory, then in the repository. Raises a
    one-line ValueError for a file that cannot be read, an unknown key or an impossible value.
    """
    values = source
    if not isinstance(source, Mapping):
        try:
            source = source if Path(source).exists() else REPOSITORY / source
            values = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"med_config: cannot read {source}: {error}") from error
    if not isinstance(values, Mapping):
        raise ValueError(f"med_config: {source} is not a JSON object")
    sizes = {key: value for key, value in values.items() if key not in IGNORED_KEYS}
    return MedConfig.read("med_config", sizes)
