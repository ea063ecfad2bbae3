"""Tokenises captions with a BERT tokenizer and BLIP's two added tokens; shifts first tokens."""

import json
import re
from contextlib import suppress
from pathlib import Path
from statistics import mode
from typing import Any, Union

import torch
from huggingface_hub import snapshot_download
from tokenizers import BertWordPieceTokenizer, decoders
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

ADDED_TOKENS = ["[DEC]", "[ENC]"]  # BLIP appends them to BERT's vocabulary
CONFIG, ADDED = "tokenizer_config.json", "added_tokens.json"
# The files of a tokenizer. As in transformers, the others are not used beside tokenizer.json,
# except CONFIG.
FILES = ["tokenizer.json", "vocab.txt", CONFIG, ADDED]
# Maps keys of tokenizer_config.json to arguments of BertWordPieceTokenizer.
OPTIONS = {
    "do_lower_case": "lowercase",
    "tokenize_chinese_chars": "handle_chinese_chars",
    **{key: key for key in ("strip_accents", "pad_token", "unk_token", "cls_token", "sep_token")},
}


class CaptionTokenizer:
    """Converts captions to token ids and back, as BertTokenizer of transformers does.

    source: a hub name such as "bert-base-uncased", a folder with vocab.txt or tokenizer.json, one
    of these files, or the `files` of another CaptionTokenizer. tokenizer_config.json and
    added_tokens.json beside the vocabulary are used, too. [DEC] starts a caption and [SEP] ends it.
    [ENC] starts a text for BLIP's filter. Raises ValueError for a vocabulary that cannot be read or
    is not BERT's.

    files: {name: text} of the files that determine the tokens.
    """

    def __init__(self, source: Union[str, dict[str, str]]):
        is_name = isinstance(source, str)
        try:
            self.files = _read_files(source) if is_name else source
            self._load()
        except Exception as error:  # of the libraries, which have no class in common
            name = source if is_name else "the checkpoint's vocabulary"
            raise ValueError(f"tokenizer: {name} is not a BERT vocabulary: {error}") from error

    def _load(self) -> None:
        """Build the tokenizer without transformers, whose import takes seconds."""
        config = json.loads(self.files.get(CONFIG, "{}"))
        names = (name for name in self.files if name not in (CONFIG, ADDED))
        vocabulary = self.files.get(next(names, ""))
        if vocabulary is None:
            raise ValueError(
                "it is no folder with vocab.txt or tokenizer.json, and could not be downloaded "
                "from the hub; set tokenizer to such a folder, or connect to the network"
            )
        if vocabulary.startswith("{"):
            saved = json.loads(vocabulary)
        else:
            words = vocabulary.removesuffix("\n").split("\n")
            saved = {"model": {"vocab": {word: number for number, word in enumerate(words)}}}
            if len(words) > len(set(words)):  # [DEC] and [ENC] would get ids of other words
                raise ValueError(f"it has {mode(words)!r} on 2 lines")
            ids = json.loads(self.files.get(ADDED, "{}"))
            added = {number: {"content": token, "special": False} for token, number in ids.items()}
            decoder = config.get("added_tokens_decoder", {})
            added.update((int(number), token) for number, token in decoder.items())
            special = config.get("additional_special_tokens", ())
            saved["added_tokens"] = [
                *(added[number] for number in sorted(added)),
                *({"content": _text(token), "special": True} for token in special),
            ]
        options = saved.get("normalizer") or {}
        options.pop("type", None)
        options.update({OPTIONS[key]: _text(config[key]) for key in OPTIONS if key in config})
        self.bert = BertWordPieceTokenizer(saved["model"]["vocab"], **options)
        # The clean-up of spaces differs between versions of the library, so `decode` does it.
        self.bert.decoder = decoders.WordPiece(cleanup=False)
        for token in saved.get("added_tokens", ()):
            add = self.bert.add_special_tokens if token["special"] else self.bert.add_tokens
            add([token["content"]])
        self.bert.add_special_tokens(ADDED_TOKENS)
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
        """Return the token ids of a text, without special tokens.

        Lone surrogates, which a JSON file may contain, are dropped.
        """
        text = text.encode("utf-8", "ignore").decode()
        return self.bert.encode(text, add_special_tokens=False).ids

    def encode(self, texts: list[str], max_length: int) -> Tensor:
        """Return ids, int64 (R, n) with n <= max_length, padded with `pad`.

        A row begins with [DEC] and ends with [SEP], even if the text is truncated.
        """
        rows = [
            torch.tensor([self.start, *self.ids(text)[: max_length - 2], self.end])
            for text in texts
        ]
        return pad_sequence(rows, True, self.pad)

    def encode_prompt(self, prompt: str) -> Tensor:
        """Return int64 (n,): [DEC] and the prompt's tokens, without [SEP]."""
        return torch.tensor([self.start, *self.ids(prompt)])

    def decode(self, ids: Tensor) -> str:
        """Return the text of ids (n,), without special tokens or spaces before punctuation."""
        text = self.bert.decode(ids.tolist(), skip_special_tokens=True).removeprefix("##")
        text = re.sub(r" ([.?!,])", r"\1", text).replace(" ' ", "'")
        return re.sub(r" (n't|'(?:m|s|ve|re))", r"\1", text)


def _text(value: Any) -> Any:
    """Return the text of a token that is saved with its flags. Other values stay unchanged."""
    return value["content"] if isinstance(value, dict) else value


def _read_files(source: str) -> dict[str, str]:
    path = Path(source)
    if not path.exists():
        with suppress(Exception):  # huggingface_hub also raises errors of its HTTP library
            path = Path(snapshot_download(source, allow_patterns=FILES))
    folder, names = (path.parent, [path.name, CONFIG, ADDED]) if path.is_file() else (path, FILES)
    paths = filter(Path.is_file, map(folder.joinpath, names))
    return {path.name: path.read_text("utf-8-sig") for path in paths}


def first_pieces(tokenizer: CaptionTokenizer) -> Tensor:
    """Return int64 (V,), the id of the piece `##word` of each word, else the token's own id.

    With first_token_shift, the piece replaces the first word of a caption. SMILE computes its
    softmax over the tokens of the caption: a first word such as "a" may occur again later in the
    caption, but the piece `##a` occurs only once. Raises ValueError for a vocabulary without
    pieces. Source: SMILE (arXiv 2306.13460), where it is an alternative to first-token MLE.
    """
    ids = tokenizer.bert.get_vocab()
    pieces = torch.arange(len(ids))
    for word, token_id in ids.items():
        pieces[token_id] = ids.get(f"##{word}", token_id)
    if torch.equal(pieces, torch.arange(len(ids))):
        raise ValueError("first_token_shift: no word of the vocabulary has a piece ##word")
    return pieces
