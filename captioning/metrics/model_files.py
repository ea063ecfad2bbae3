"""Finds the files of the pre-trained models that metrics use, and loads weights and tokenisers."""

import contextlib
from pathlib import Path
from typing import Callable, Literal, NamedTuple, Optional

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor, nn

from BLIP.weights.download import hub_file
from BLIP.weights.safe_load import read_pickled
from captioning.runtime.errors import UserError, one_line

CLIP_MODEL = "openai/clip-vit-base-patch32"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
END = "<|endoftext|>"  # of CLIP and GPT-2; GPT-2 has no other special token
START = "<|startoftext|>"  # of CLIP

_CLIP_PIECES = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class ModelFiles(NamedTuple):
    """The paths of a model's files.

    config: config.json; None if the model is a single file of weights. vocabulary, merges:
    vocab.json and merges.txt; or tokenizer.json, which contains the merges, and None.
    """

    config: Optional[Path]
    vocabulary: Path
    merges: Optional[Path]
    weights: Path


def find_model(key: str, source: str) -> ModelFiles:
    """Return the files of a model, from a folder or the hub.

    key: the name of the option, for errors. source: the value of the option. A `clip_model` may be
    a single file of weights. Then the vocabulary is taken from vocab.json in the same folder or,
    without this file, from CLIP_MODEL: all released CLIPs have the same vocabulary. Raises
    UserError if a file is missing.
    """
    weights = Path(source).expanduser()
    if key == "clip_model" and weights.is_file():
        in_folder = (weights.parent / "vocab.json").is_file()
        try:
            vocabulary = _find_vocabulary(key, str(weights.parent) if in_folder else CLIP_MODEL)
        except UserError:
            raise UserError(
                f"{key}: found no vocab.json and merges.txt next to {weights}, and none of "
                f"{CLIP_MODEL} here or on the hub: put both files next to the weights"
            ) from None
        return ModelFiles(None, *vocabulary, weights)
    config = find_file(key, source, "config.json")
    weights = find_file(key, source, *WEIGHTS)
    return ModelFiles(config, *_find_vocabulary(key, source), weights)


def _find_vocabulary(key: str, source: str) -> tuple[Path, Optional[Path]]:
    vocabulary = find_file(key, source, "vocab.json", "tokenizer.json")
    has_merges = vocabulary.name == "tokenizer.json"
    return vocabulary, None if has_merges else find_file(key, source, "merges.txt")


def find_file(key: str, source: str, *names: str) -> Path:
    """Return the path of the first of the named files that exists, in a folder or on the hub.

    Raises UserError if none exists.
    """
    folder = Path(source).expanduser()
    for name in names:
        # All exceptions are suppressed, because the hub client also raises those of its libraries.
        with contextlib.suppress(Exception):
            path = folder / name if folder.is_dir() else hub_file(source, name)
            if path.is_file():
                return path
    where = f"in {source}" if folder.is_dir() else f"of {source} here or on the hub"
    raise UserError(
        f"{key}: found no {' or '.join(names)} {where}: put the model's config.json, "
        f"{' or '.join(WEIGHTS)}, vocab.json and merges.txt into a folder and set {key} to it"
    )


def read_weights(path: Path, within: Optional[str] = None) -> dict[str, Tensor]:
    """Return {name: tensor} of a file of weights, without running code from the file.

    within: a key of the file; if it exists, the state dict under this key is returned. Raises
    UserError.
    """
    from safetensors.torch import load_file

    try:
        state = load_file(path) if path.suffix == ".safetensors" else read_pickled(path)
    except Exception as error:  # safetensors raises its own exceptions
        raise UserError(f"{path}: cannot be read ({one_line(error)}): download it again") from None
    if isinstance(state, dict):
        state = state.get(within, state)
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UserError(f"{path}: contains no weights by name: download it again")
    return state


def load_model(
    key: str, files: ModelFiles, build: Callable[[], nn.Module], state: dict[str, Tensor]
) -> nn.Module:
    """Return the model that `build` makes, with weights from `state`, in float32 for inference.

    Only parameters are loaded, because not all versions of transformers save the buffers. key,
    files: for errors. Raises UserError if `build` fails, or the weights do not fit the model.
    """
    path = files.weights
    try:
        model = build().float()
    except Exception as error:  # transformers raises various types
        problem = f"no configuration of this kind of model ({one_line(error)})"
        raise UserError(f"{files.config}: {key}: {problem}") from None
    names = [name for name, _ in model.named_parameters()]
    for name in names:
        if name not in state:
            raise UserError(f"{path}: lacks {name}: these are the weights of another model")
        if not state[name].isfinite().all():
            raise UserError(f"{path}: {name} has values that are not finite: download it again")
    try:
        model.load_state_dict({name: state[name] for name in names}, strict=False)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"{path}: the sizes do not fit the model: {reason}") from None
    return model.eval().requires_grad_(False)


class BpeTokenizer:
    """A BPE tokeniser: maps texts to token ids.

    style: "clip" or "gpt2" to normalise and split texts as this model does; None to do it as the
    model's tokenizer.json says.

    The ids for CLIP and GPT-2 equal the ids from OpenAI's tokenisers and transformers' fast
    tokenisers, except that wrongly decoded text (mojibake) is not repaired. transformers itself is
    not used, because its slow CLIP tokeniser in version 4.15.0 strips accents and splits words
    differently.
    """

    def __init__(self, files: ModelFiles, style: Optional[Literal["clip", "gpt2"]] = None):
        self.path = files.vocabulary
        try:
            if files.merges is None:
                self.backend = Tokenizer.from_file(str(files.vocabulary))
            else:
                suffix = {"end_of_word_suffix": "</w>"} if style == "clip" else {}
                paths = str(files.vocabulary), str(files.merges)
                self.backend = Tokenizer(models.BPE.from_file(*paths, **suffix))
        except Exception as error:  # its type depends on the version of tokenizers
            problem = f"holds no BPE vocabulary with merges ({one_line(error)}): download it again"
            raise UserError(f"{self.path}: {problem}") from None
        self.backend.no_truncation()
        self.backend.no_padding()
        if style is None:
            return
        split = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if style == "clip":
            one_space = normalizers.Replace(Regex(r"\s+"), " ")
            rules = [normalizers.NFC(), one_space, normalizers.Lowercase()]
            self.backend.normalizer = normalizers.Sequence(rules)
            pieces = pre_tokenizers.Split(Regex(_CLIP_PIECES), behavior="removed", invert=True)
            split = pre_tokenizers.Sequence([pieces, split])
        self.backend.pre_tokenizer = split

    def special(self, token: str) -> int:
        """Return the id of a special token. Raises UserError if the vocabulary lacks it."""
        found = self.backend.token_to_id(token)
        if found is None:
            raise UserError(f"{self.path}: the vocabulary lacks {token}: download it again")
        return found

    def encode(self, texts: list[str], add_special_tokens: bool = False) -> list[list[int]]:
        """Return each text's token ids. add_special_tokens: whether to add those of the file."""
        # A text from JSON may contain a lone surrogate, which cannot be encoded: it becomes "?".
        texts = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        encodings = self.backend.encode_batch(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]
