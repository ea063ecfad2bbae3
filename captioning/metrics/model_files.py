"""The files of a pre-trained model that a metric uses: in a folder, or on the Hugging Face hub."""

from pathlib import Path
from typing import Any, NamedTuple, Optional

from torch import Tensor, nn

from BLIP.download import hub_file
from BLIP.pickled import read_pickled
from captioning.files.reading import read_json
from captioning.runtime.errors import UserError, one_line

WEIGHTS = ("model.safetensors", "pytorch_model.bin")


class ModelFiles(NamedTuple):
    """config: its sizes; vocabulary: vocab.json, with merges.txt, or tokenizer.json; weights."""

    config: Path
    vocabulary: Path
    merges: Optional[Path]
    weights: Path


def find_model(key: str, source: str) -> ModelFiles:
    """Return the files of a model, fetched from the hub unless `source` is a folder.

    key: the setting that names it, for errors. Raises UserError: what is missing and what to do.
    """
    config = _find(key, source, "config.json")
    weights = _find(key, source, *WEIGHTS)
    vocabulary = _find(key, source, "vocab.json", "tokenizer.json")
    whole = vocabulary.name == "tokenizer.json"
    merges = None if whole else _find(key, source, "merges.txt")
    return ModelFiles(config, vocabulary, merges, weights)


def _find(key: str, source: str, *names: str) -> Path:
    """The first of these files that is there."""
    folder = Path(source).expanduser()
    for name in names:
        path = folder / name if folder.is_dir() else _from_hub(str(source), name)
        if path is not None and path.is_file():
            return path
    where = f"in {source}" if folder.is_dir() else f"of {source} here or on the hub"
    raise UserError(
        f"{key}: found no {' or '.join(names)} {where}: put the model's config.json, "
        f"{' or '.join(WEIGHTS)}, vocab.json and merges.txt into a folder and set {key} to it"
    )


def _from_hub(source: str, name: str) -> Optional[Path]:
    try:
        return hub_file(source, name)
    except Exception:  # the hub client raises types of its own and of its HTTP library
        return None


def read_sizes(files: ModelFiles) -> dict[str, Any]:
    """Return the content of the model's config.json. Raises UserError."""
    sizes = read_json(files.config)
    if not isinstance(sizes, dict):
        raise UserError(f"{files.config}: no model's configuration: download it again")
    return sizes


def load_weights(model: nn.Module, path: Path, prefix: str = "") -> None:
    """Put the weights of a file into `model`. Raises UserError if they are not this model's.

    prefix: what the file's names may begin with beyond the model's own. Buffers, which versions of
    transformers save or do not, are left as they are.
    """
    state = _read(path)
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UserError(f"{path}: holds no weights by name: download it again")
    state = {name.removeprefix(prefix): value for name, value in state.items()}
    names = [name for name, _ in model.named_parameters()]
    lacking = [name for name in names if name not in state]
    if lacking:
        raise UserError(f"{path}: lacks {lacking[0]}: these are the weights of another model")
    broken = [name for name in names if not state[name].isfinite().all()]
    if broken:
        raise UserError(f"{path}: {broken[0]} holds values that are not finite: download it again")
    try:
        model.load_state_dict({name: state[name] for name in names}, strict=False)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"{path}: does not fit the config.json beside it: {reason}") from None


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return read_pickled(path)
    except Exception as error:  # safetensors has errors of its own
        raise UserError(f"{path}: cannot be read ({one_line(error)}): download it again") from None
