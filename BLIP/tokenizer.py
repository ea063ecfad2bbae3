"""Tokenises captions with a BERT tokenizer and BLIP's two added tokens; shifts first tokens."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Union

import torch
from huggingface_hub import snapshot_download
from tokenizers import BertWordPieceTokenizer, decoders
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from decoding.characters import join_characters

ADDED_TOKENS = ("[DEC]", "[ENC]")  # BLIP appends them to BERT's vocabulary
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The files of a tokenizer. As in transformers, vocab.txt is not used beside tokenizer.json.
FILES = TOKENIZER, VOCABULARY, CONFIG = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
# Maps keys of tokenizer_config.json to arguments of BertWordPieceTokenizer.
OPTIONS = {
    "do_lower_case": "lowercase",
    "tokenize_chinese_chars": "handle_chinese_chars",
    **{key: key for key in ("strip_accents", "pad_token", "unk_token", "cls_token", "sep_token")},
}


class CaptionTokenizer:
    """Converts captions to token ids and back, as BertTokenizer of transformers does.

    source: a hub name such as "bert-base-uncased", a folder with vocab.txt or tokenizer.json, one
    of these files, or the `files` of another CaptionTokenizer. tokenizer_config.json beside the
    vocabulary is used, too. [DEC] starts a caption and [SEP] ends it. [ENC] starts a text for
    BLIP's filter. Raises ValueError for a vocabulary that cannot be read or is not BERT's.

    files: {name: text} of the files that determine the tokens.
    """

    def __init__(self, source: Union[str, Mapping[str, str]]):
        is_read = isinstance(source, Mapping)
        try:
            self.files = dict(source) if is_read else _read_files(source)
            self._load()
        except Exception as error:  # of the libraries, which have no class in common
            name = "the checkpoint's vocabulary" if is_read else source
            raise ValueError(f"tokenizer: {name} is not a BERT vocabulary: {error}") from error

    def _load(self) -> None:
        """Build the tokenizer without transformers, whose import takes seconds."""
        config, saved = (json.loads(self.files.get(name, "{}")) for name in (CONFIG, TOKENIZER))
        if saved:
            ids = saved["model"]["vocab"]
        else:
            words = self.files[VOCABULARY].removesuffix("\n").split("\n")
            word, count = Counter(words).most_common(1)[0]
            if count > 1:  # [DEC] and [ENC] would get ids of other words
                raise ValueError(f"it has {word!r} on {count} lines")
            ids = {word: number for number, word in enumerate(words)}
        options = {**(saved.get("normalizer") or {})}
        options.pop("type", None)
        options.update({OPTIONS[key]: config[key] for key in OPTIONS if key in config})
        self.bert = BertWordPieceTokenizer(ids, **options)
        # The clean-up of spaces differs between versions of the library, so `decode` does it.
        self.bert.decoder = decoders.WordPiece(cleanup=False)
        self.bert.add_tokens([token["content"] for token in saved.get("added_tokens", ())])
        self.bert.add_special_tokens(list(ADDED_TOKENS))
        self.added_ids = {token: self.bert.token_to_id(token) for token in ADDED_TOKENS}
        self.start = self.added_ids["[DEC]"]
        self.end, self.pad, self.unknown = (
            self.bert.token_to_id(options.get(f"{role}_token", f"[{role.upper()}]"))
            for role in ("sep", "pad", "unk")
        )
        if None in (self.pad, self.unknown):
            raise ValueError("it lacks [PAD] or [UNK]")

    def __len__(self) -> int:
        return self.bert.get_vocab_size()

    def token(self, token_id: int) -> str:
        return self.bert.id_to_token(token_id)

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        # Without lone surrogates, which a JSON file may contain.
        text = text.encode("utf-8", "ignore").decode()
        return self.bert.encode(text, add_special_tokens=False).ids

    def encode(self, texts: list[str], max_length: int) -> tuple[Tensor, Tensor]:
        """Return ids and mask (1 token, 0 padding), int64 (R, n) with n <= max_length.

        A row begins with [DEC] and ends with [SEP], even if the text is truncated.
        """
        rows = [
            torch.tensor([self.start, *self.ids(text)[: max_length - 2], self.end])
            for text in texts
        ]
        ids = pad_sequence(rows, batch_first=True, padding_value=self.pad)
        return ids, (ids != self.pad).long()

    def encode_prompt(self, prompt: str) -> Tensor:
        """Return int64 (n,): [DEC] and the prompt's tokens, without [SEP]."""
        return torch.tensor([self.start, *self.ids(prompt)])

    def write(self, folder: Path) -> None:
        """Write `files`. Their reader must append ADDED_TOKENS."""
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")

    def decode(self, ids: Tensor) -> str:
        """Return the text of ids (n,), without special tokens or spaces before punctuation.

        transformers does so, too, but keeps spaces between Chinese characters.
        """
        text = self.bert.decode(ids.tolist(), skip_special_tokens=True).removeprefix("##")
        text = join_characters(text)
        text = re.sub(r" ([.?!,])", r"\1", text).replace(" ' ", "'")
        return re.sub(r" (n't|'(?:m|s|ve|re))", r"\1", text)


def _read_files(source: str) -> dict[str, str]:
    path = Path(source)
    if path.is_file():
        name = TOKENIZER if path.suffix == ".json" else VOCABULARY
        paths = {name: path, CONFIG: path.with_name(CONFIG)}
    else:
        if not path.is_dir():
            with suppress(Exception):  # huggingface_hub also raises errors of its HTTP library
                path = Path(snapshot_download(source, allow_patterns=[*FILES]))
        paths = {name: path / name for name in FILES}
    files = {name: file.read_text("utf-8-sig") for name, file in paths.items() if file.is_file()}
    if not {TOKENIZER, VOCABULARY} & files.keys():
        raise ValueError(
            f"it is no folder with {VOCABULARY} or {TOKENIZER}, and could not be downloaded from "
            "the hub; set tokenizer to such a folder, or connect to the network"
        )
    return files


class FirstTokenShift:
    """Maps the first token of a caption, `word`, to the piece `##word`.

    SMILE computes its softmax over the tokens of the caption. A first word such as "a" may occur
    again later in the caption, but the piece `##a` occurs only once. A word without such a piece is
    not changed. Raises ValueError for a vocabulary without pieces. Source: SMILE
    (arXiv 2306.13460), where the shift is an alternative to first-token MLE.
    """

    def __init__(self, tokenizer: CaptionTokenizer):
        words = {tokenizer.token(token_id): token_id for token_id in range(len(tokenizer))}
        ids = [words.get(f"##{word}", token_id) for word, token_id in words.items()]
        self.piece = torch.tensor(ids)  # (V,), the id of each word's piece
        ids = [words.get(word.removeprefix("##"), token_id) for word, token_id in words.items()]
        self.word = torch.tensor(ids)  # (V,), the id of each piece's word
        if torch.equal(self.piece, self.word):
            raise ValueError("first_token_shift: no word of the vocabulary has a piece ##word")

    def apply(self, tokens: Tensor, start: Union[int, Tensor]) -> Tensor:
        """Replace the first caption token of each row by its piece. Return a copy of `tokens`.

        tokens: int64 (R, N). start: the position of the first caption token, one for all rows or
        int64 (R,).
        """
        tokens, rows = tokens.clone(), torch.arange(len(tokens))
        tokens[rows, start] = self.piece[tokens[rows, start]]
        return tokens

    def word_logits(self, logits: Tensor) -> Tensor:
        """Convert logits (B, V) of the first caption token to logits of words.

        A word gets the higher one of the logits of `word` and `##word`. A piece gets -inf. logits:
        on the CPU.
        """
        is_piece = self.word != torch.arange(len(self.word))  # (V,)
        return logits.maximum(logits[:, self.piece]).masked_fill(is_piece, float("-inf"))
