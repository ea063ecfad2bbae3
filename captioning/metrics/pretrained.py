"""Loads pre-trained models of transformers, such as CLIP and GPT-2, for inference in float32."""

from pathlib import Path
from typing import Any

from torch import nn

from captioning.runtime.errors import UserError, one_line

_OLD = "4.15.0"  # the version of transformers on Python 3.9
_FILES = (
    "give a hub id, or a folder with config.json, model.safetensors or pytorch_model.bin, and "
    "tokenizer.json or vocab.json and merges.txt"
)


def load_pretrained(key: str, source: str, kind: str) -> nn.Module:
    """Return a model.

    - key: the name of the option, for errors
    - source: a hub id or a folder
    - kind: one of transformers' classes, such as "AutoModel"

    Raises UserError, also for missing weights, which transformers would initialise.
    """
    transformers = _library()
    try:
        model, loading = getattr(transformers, kind).from_pretrained(
            _folder(source), output_loading_info=True, trust_remote_code=False
        )
        if loading["missing_keys"]:
            raise ValueError(f"the weights lack {sorted(loading['missing_keys'])[0]}")
        return for_inference(model)
    except Exception as error:  # transformers and the hub's client raise many types
        raise _error(key, source, error) from None


def load_tokenizer(key: str, source: str, kind: str = "AutoTokenizer") -> Any:
    """Return the tokenizer of a hub id or a folder. For the parameters, see `load_pretrained`."""
    transformers = _library()
    try:
        folder = _folder(source)
        names = {path.name for path in folder.iterdir()}
        # Without these files, transformers returns a tokenizer without words. 4.15.0 splits words
        # wrongly without tokenizer.json.
        is_old = transformers.__version__ == _OLD
        if "tokenizer.json" not in names and (is_old or not {"vocab.json", "merges.txt"} <= names):
            raise ValueError(f"there is no {'tokenizer.json' if is_old else 'vocabulary'}")
        return getattr(transformers, kind).from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise _error(key, source, error) from None


def for_inference(model: nn.Module) -> nn.Module:
    """Return a model in float32 without gradients. Raises ValueError if a weight is not finite."""
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise ValueError(f"{name} has values that are not finite")
    return model.float().eval().requires_grad_(False)


def _library():
    import transformers

    transformers.utils.logging.set_verbosity_error()  # problems are raised, in one line
    getattr(transformers.utils.logging, "disable_progress_bar", bool)()
    return transformers


def _folder(source: str) -> Path:
    """Return the folder `source`, or one with the files of a hub id, which are downloaded."""
    import transformers
    from huggingface_hub import snapshot_download

    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    # transformers itself would retry for a minute without a network, and 4.15.0 follows no
    # redirects of the hub, and reads no safetensors.
    weights = ["pytorch_model*.bin", "model*.safetensors"]
    for pattern in weights[: 1 if transformers.__version__ == _OLD else 2][::-1]:
        folder = Path(snapshot_download(source, allow_patterns=["*.json", "*.txt", pattern]))
        if any(folder.glob(pattern)):
            break
    return folder


def _error(key: str, source: str, error: Exception) -> UserError:
    version = _library().__version__
    reason = f"cannot be loaded by transformers {version} ({one_line(error)})"
    return UserError(f"{key}: {source} {reason}: {_FILES}")
