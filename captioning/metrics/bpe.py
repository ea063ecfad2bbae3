"""CLIP's and GPT-2's byte-level BPE, the same tokens whatever version of transformers is installed.

Its slow CLIP tokeniser (4.15.0) strips accents and splits words where its fast one does not; the
rules here are the fast one's, which follow OpenAI's, without the repair of wrongly decoded text.
"""

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from captioning.files.reading import read_json, read_text
from captioning.metrics.model_files import ModelFiles
from captioning.runtime.errors import UserError

END = "<|endoftext|>"  # GPT-2's only mark, which begins a text as well
START = "<|startoftext|>"

_CLIP_PIECES = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class Bpe:
    """Text to token ids, without marks at the ends; `special` is the id of a mark."""

    def __init__(self, files: ModelFiles, clip: bool):
        self.vocabulary, merges = _read(files)
        suffix = {"end_of_word_suffix": "</w>"} if clip else {}
        try:
            model = models.BPE(vocab=self.vocabulary, merges=merges, **suffix)
        except Exception as error:  # whatever the Rust library makes of a wrong file
            where = files.merges or files.vocabulary
            raise UserError(f"{where}: holds no BPE merges ({error}): download it again") from None
        self.tokenizer = Tokenizer(model)
        bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.pre_tokenizer = bytes_of_words
        if clip:
            self.tokenizer.normalizer = normalizers.Sequence(
                [
                    normalizers.NFC(),
                    normalizers.Replace(Regex(r"\s+"), " "),
                    normalizers.Lowercase(),
                ]
            )
            pieces = pre_tokenizers.Split(Regex(_CLIP_PIECES), behavior="removed", invert=True)
            self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, bytes_of_words])
        self.where = files.vocabulary

    def special(self, mark: str) -> int:
        try:
            return self.vocabulary[mark]
        except KeyError:
            raise UserError(
                f"{self.where}: the vocabulary lacks {mark}: download it again"
            ) from None

    def encode(self, texts: list[str]) -> list[list[int]]:
        # A lone surrogate, which JSON can hold, is no text that can be written as bytes.
        texts = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]


def _read(files):
    """Return {token: id} and the merges, pairs of tokens, the first to be applied first."""
    content = read_json(files.vocabulary)
    try:
        if files.merges is not None:
            lines = read_text(files.merges).split("\n")
            merges = [line for line in lines if line and not line.startswith("#version")]
            vocabulary = content
        else:
            merges = content["model"]["merges"]
            added = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
            vocabulary = {**content["model"]["vocab"], **added}
        # Newer files hold pairs, older ones "a b".
        pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in merges]
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{files.vocabulary}: holds no BPE vocabulary: download it again") from None
    return vocabulary, pairs
