"""A pre-trained model that a metric uses: its files, from a folder or the hub, and their content.

CLIP's and GPT-2's byte-level BPE gives the same tokens whatever version of transformers is there.
Its slow CLIP tokeniser (4.15.0) strips accents and splits words where its fast one does not; the
rules here are the fast one's, which follow OpenAI's, without the repair of wrongly decoded text.
"""

import contextlib
from pathlib import Path
from typing import Any, NamedTuple, Optional

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor, nn

from BLIP.weights.download import hub_file
from BLIP.weights.safe_load import read_pickled
from captioning.files.reading import read_json, read_text
from captioning.runtime.errors import UserError, one_line

CLIP_MODEL = "openai/clip-vit-base-patch32"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
END = "<|endoftext|>"  # GPT-2's only mark, which begins a text as well
START = "<|startoftext|>"

_CLIP_PIECES = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class ModelFiles(NamedTuple):
    """config: its sizes; vocabulary: vocab.json, with merges.txt, or tokenizer.json; weights.

    A file of weights alone has no config.
    """

    config: Optional[Path]
    vocabulary: Path
    merges: Optional[Path]
    weights: Path


def find_model(key: str, source: str) -> ModelFiles:
    """Return the files of a model, fetched from the hub unless `source` is a folder.

    key: the setting that names it. A `clip_model` may be a file of weights alone, whose vocabulary
    is that of all released CLIPs. Raises UserError: what is missing and what to do.
    """
    weights = Path(source).expanduser()
    if key == "clip_model" and weights.is_file():
        beside = (weights.parent / "vocab.json").is_file()
        try:
            words = _find_words(key, str(weights.parent) if beside else CLIP_MODEL)
        except UserError:
            raise UserError(
                f"{key}: found no vocab.json and merges.txt beside {weights}, and none of "
                f"{CLIP_MODEL} here or on the hub: put them there"
            ) from None
        return ModelFiles(None, *words, weights)
    config = _find(key, source, "config.json")
    weights = _find(key, source, *WEIGHTS)
    return ModelFiles(config, *_find_words(key, source), weights)


def _find_words(key: str, source: str) -> tuple[Path, Optional[Path]]:
    """Return vocab.json and merges.txt, or tokenizer.json and None. Raises UserError."""
    vocabulary = _find(key, source, "vocab.json", "tokenizer.json")
    whole = vocabulary.name == "tokenizer.json"
    return vocabulary, None if whole else _find(key, source, "merges.txt")


def _find(key: str, source: str, *names: str) -> Path:
    """The first of these files that is there."""
    folder = Path(source).expanduser()
    for name in names:
        path = folder / name if folder.is_dir() else None
        if path is None:
            # The hub client raises types of its own and of its HTTP library.
            with contextlib.suppress(Exception):
                path = hub_file(source, name)
        if path is not None and path.is_file():
            return path
    where = f"in {source}" if folder.is_dir() else f"of {source} here or on the hub"
    raise UserError(
        f"{key}: found no {' or '.join(names)} {where}: put the model's config.json, "
        f"{' or '.join(WEIGHTS)}, vocab.json and merges.txt into a folder and set {key} to it"
    )


def read_sizes(files: ModelFiles) -> dict[str, Any]:
    """Return the content of the model's config.json. Raises UserError."""
    sizes = read_json(files.config)
    if not isinstance(sizes, dict):
        raise UserError(f"{files.config}: no model's configuration: download it again")
    return sizes


def load_weights(model: nn.Module, path: Path, prefix: str = "") -> None:
    """Put the weights of a file into `model`. Raises UserError if they are not this model's.

    prefix: what the file's names may begin with beyond the model's own.
    """
    state = read_weights(path)
    put_weights(model, {name.removeprefix(prefix): v for name, v in state.items()}, path)


def read_weights(path: Path, within: Optional[str] = None) -> dict[str, Tensor]:
    """Return a file's weights by name. within: the name that they may be under. Raises UserError.

    Nothing in the file is run.
    """
    from safetensors.torch import load_file

    try:
        state = load_file(path) if path.suffix == ".safetensors" else read_pickled(path)
    except Exception as error:  # safetensors has errors of its own
        raise UserError(f"{path}: cannot be read ({one_line(error)}): download it again") from None
    if within and isinstance(state, dict) and within in state:
        state = state[within]
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UserError(f"{path}: holds no weights by name: download it again")
    return state


def put_weights(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Put weights by the model's names, read from `path`, into `model`. Raises UserError.

    Buffers, which versions of transformers save or do not, are left as they are.
    """
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
        raise UserError(f"{path}: these are of other sizes than the model: {reason}") from None


class Bpe:
    """Text to token ids, without marks at the ends; `special` is the id of a mark."""

    def __init__(self, files: ModelFiles, clip: bool):
        content, where = read_json(files.vocabulary), files.merges or files.vocabulary
        try:
            if files.merges is not None:
                lines = read_text(files.merges).split("\n")
                merges = [line for line in lines if line and not line.startswith("#version")]
                self.vocabulary = content
            else:
                merges = content["model"]["merges"]  # the first to be applied first
                added = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
                self.vocabulary = {**content["model"]["vocab"], **added}
            # Newer files hold pairs, older ones "a b".
            merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in merges]
        except (KeyError, TypeError, AttributeError):
            problem = "holds no BPE vocabulary: download it again"
            raise UserError(f"{files.vocabulary}: {problem}") from None
        suffix = {"end_of_word_suffix": "</w>"} if clip else {}
        try:
            model = models.BPE(vocab=self.vocabulary, merges=merges, **suffix)
        except Exception as error:  # whatever the Rust library makes of a wrong file
            raise UserError(f"{where}: holds no BPE merges ({error}): download it again") from None
        self.tokenizer = Tokenizer(model)
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if clip:
            one_space = normalizers.Replace(Regex(r"\s+"), " ")
            rules = [normalizers.NFC(), one_space, normalizers.Lowercase()]
            self.tokenizer.normalizer = normalizers.Sequence(rules)
            pieces = pre_tokenizers.Split(Regex(_CLIP_PIECES), behavior="removed", invert=True)
            both = [pieces, self.tokenizer.pre_tokenizer]
            self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(both)
        self.where = files.vocabulary

    def special(self, mark: str) -> int:
        if mark not in self.vocabulary:
            raise UserError(f"{self.where}: the vocabulary lacks {mark}: download it again")
        return self.vocabulary[mark]

    def encode(self, texts: list[str]) -> list[list[int]]:
        # A lone surrogate, which JSON can hold, is no text that can be written as bytes.
        texts = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
