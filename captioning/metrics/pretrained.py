"""Loads pre-trained models of transformers, such as CLIP and GPT-2, for inference in float32."""

from pathlib import Path
from typing import Any, Optional

from torch import nn

from captioning.runtime.errors import UserError, one_line

_OLD = "4.15.0"  # the version of transformers on Python 3.9
_FILES = (
    "give a hub id, or a folder with config.json, model.safetensors or pytorch_model.bin, and "
    "tokenizer.json or vocab.json and merges.txt"
)


def load_pretrained(
    key: str, source: str, model: Optional[str], tokenizer: str = "AutoTokenizer"
) -> tuple[Optional[nn.Module], Any]:
    """Return a model and its tokenizer.

    - key: the name of the option, for errors
    - source: a hub id or a folder
    - model: one of transformers' classes, such as "AutoModel"; None for no model
    - tokenizer: the class of the tokenizer

    Raises UserError, also for missing weights, which transformers would initialise.
    """
    import transformers

    version, log = transformers.__version__, transformers.utils.logging
    log.set_verbosity_error()  # problems are raised, in one line
    getattr(log, "disable_progress_bar", bool)()
    try:
        folder = Path(source) if Path(source).is_dir() else _download(source)
        return model and _model(folder, model), _tokenizer(folder, tokenizer)
    except Exception as error:  # transformers and the hub's client raise many types
        reason = f"cannot be loaded by transformers {version} ({one_line(error)})"
        raise UserError(f"{key}: {source} {reason}: {_FILES}") from None


def _download(source: str) -> Path:
    """Return the local folder of a model on the hub.

    transformers itself would retry for a minute without a network, and 4.15.0 follows no redirects
    of the hub, and reads no safetensors.
    """
    import transformers
    from huggingface_hub import snapshot_download

    kinds = ["model*.safetensors", "pytorch_model*.bin"]
    for weights in kinds[transformers.__version__ == _OLD :]:
        folder = Path(snapshot_download(source, allow_patterns=["*.json", "*.txt", weights]))
        if any(folder.glob(weights)):
            break
    return folder


def _model(folder: Path, kind: str) -> nn.Module:
    import transformers

    model, loading = getattr(transformers, kind).from_pretrained(
        folder, output_loading_info=True, trust_remote_code=False
    )
    if loading["missing_keys"]:
        raise ValueError(f"the weights lack {sorted(loading['missing_keys'])[0]}")
    return model.float().eval().requires_grad_(False)


def _tokenizer(folder: Path, kind: str) -> Any:
    import transformers

    names = {path.name for path in folder.iterdir()}
    is_fast = "tokenizer.json" in names
    if not is_fast and not {"vocab.json", "merges.txt"} <= names:
        raise ValueError("there is no vocabulary")  # transformers would make one without words
    tokenizer = getattr(transformers, kind).from_pretrained(folder, trust_remote_code=False)
    is_clip = type(tokenizer).__name__.startswith("CLIP")
    if is_clip and not is_fast and transformers.__version__ == _OLD:
        raise ValueError("this version splits words wrongly without tokenizer.json")
    return tokenizer


def encodable(text: str) -> str:
    """Return a text without lone surrogates, which JSON may have and tokenizers refuse."""
    return text.encode("utf-8", "replace").decode()
