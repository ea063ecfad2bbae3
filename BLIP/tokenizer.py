"""Tokenises captions with BERT's tokenizer and BLIP's two added tokens; shifts first tokens."""

import re
from collections import Counter
from pathlib import Path
from typing import Union

import torch
from tokenizers import BertWordPieceTokenizer, decoders
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from BLIP.download import hub_file

ADDED_TOKENS = ("[DEC]", "[ENC]")  # BLIP appends them to BERT's vocabulary
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class CaptionTokenizer:
    """Converts captions to token ids and back.

    source: a hub name such as "bert-base-uncased", a folder with vocab.txt, or the file vocab.txt.
    [DEC] starts a caption and [SEP] ends it. [ENC] starts a text for BLIP's filter. Raises
    ValueError for a vocabulary that cannot be read or is not BERT's.
    """

    def __init__(self, source: str):
        self.bert = _load_bert(_find_vocabulary(source))
        self.bert.add_special_tokens(list(ADDED_TOKENS))
        self.added_ids = {token: self.bert.token_to_id(token) for token in ADDED_TOKENS}
        self.start, self.end, self.pad, self.unknown = map(
            self.bert.token_to_id, ("[DEC]", "[SEP]", "[PAD]", "[UNK]")
        )

    def __len__(self) -> int:
        return self.bert.get_vocab_size()

    def token(self, token_id: int) -> str:
        return self.bert.id_to_token(token_id)

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        return self.bert.encode(_unicode(text), add_special_tokens=False).ids

    def encode(self, texts: list[str], max_length: int) -> tuple[Tensor, Tensor]:
        """Return ids and mask (1 token, 0 padding), int64 (R, n) with n <= max_length.

        A row begins with [DEC] and ends with [SEP], even if the text is truncated.
        """
        rows = [
            torch.tensor([self.start, *self.ids(text)[: max_length - 2], self.end])
            for text in texts
        ]
        ids = pad_sequence(rows, batch_first=True, padding_value=self.pad)
        return ids, pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)

    def encode_prompt(self, prompt: str) -> Tensor:
        """Return int64 (n,): [DEC] and the prompt's tokens, without [SEP]."""
        return torch.tensor([self.start, *self.ids(prompt)])

    def write_vocabulary(self, folder: Path) -> None:
        """Write `vocab.txt` with BERT's tokens. A reader of the file must append ADDED_TOKENS."""
        words = map(self.token, range(len(self) - len(ADDED_TOKENS)))
        (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")

    def decode(self, ids: Tensor) -> str:
        """Return the text of ids (n,), without special tokens or spaces before punctuation."""
        text = self.bert.decode(ids.tolist(), skip_special_tokens=True)
        text = re.sub(r" ([.?!,])", r"\1", text).replace(" ' ", "'")
        return re.sub(r" (n't|'(?:m|s|ve|re))", r"\1", text)


def _unicode(text: str) -> str:
    """Drop lone surrogates, which a JSON file may contain.

    transformers 4.15.0 drops lone surrogates, too, but 5.x raises an error for them.
    """
    return text.encode("utf-8", "ignore").decode("utf-8")


def _find_vocabulary(source: str) -> Path:
    path = Path(source)
    if path.is_dir():
        path = path / "vocab.txt"
    if path.is_file():
        return path
    try:
        return hub_file(source, "vocab.txt")
    except Exception as error:  # huggingface_hub also raises errors of its HTTP library
        raise ValueError(
            f"tokenizer: {source!r} is not a folder with vocab.txt, and could not be downloaded "
            "from the hub; set tokenizer to a folder with vocab.txt, or connect to the network"
        ) from error


def _load_bert(vocabulary: Path) -> BertWordPieceTokenizer:
    """Build a tokenizer equal to BertTokenizer of transformers, whose import would take seconds."""
    words = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    missing = [token for token in SPECIAL_TOKENS if token not in words]
    if missing:
        raise ValueError(f"tokenizer: {vocabulary} is not a BERT vocabulary: it lacks {missing[0]}")
    word, count = Counter(words).most_common(1)[0]
    if count > 1:  # [DEC] and [ENC] would get ids of other words
        raise ValueError(
            f"tokenizer: {vocabulary} is not a BERT vocabulary: it has {word!r} on {count} lines"
        )
    bert = BertWordPieceTokenizer({word: number for number, word in enumerate(words)})
    # The clean-up of spaces differs between versions of the library, so `decode` does it.
    bert.decoder = decoders.WordPiece(cleanup=False)
    return bert


class FirstTokenShift:
    """Maps the first token of a caption, `word`, to the piece `##word`, and back.

    SMILE computes its softmax over the tokens of the caption. A first word such as "a" may occur
    again later in the caption, but the piece `##a` occurs only once. A word without such a piece is
    not changed. Raises ValueError for a vocabulary without pieces. Source: SMILE
    (arXiv 2306.13460), where the shift is an alternative to first-token MLE.
    """

    def __init__(self, tokenizer: CaptionTokenizer):
        ids = {tokenizer.token(token_id): token_id for token_id in range(len(tokenizer))}
        self.piece = torch.arange(len(tokenizer))  # (V,), the id of each word's piece
        for word, token_id in ids.items():
            self.piece[token_id] = ids.get(f"##{word}", token_id)
        has_piece = self.piece != torch.arange(len(self.piece))
        if not has_piece.any():
            raise ValueError("first_token_shift: no word of the vocabulary has a piece ##word")
        self.word = torch.arange(len(tokenizer))  # (V,), the id of each piece's word
        self.word[self.piece[has_piece]] = has_piece.nonzero().squeeze(1)

    def apply(self, tokens: Tensor, start: Union[int, Tensor]) -> Tensor:
        """Replace the first caption token of each row by its piece. Return a copy of `tokens`.

        tokens: int64 (R, N). start: the position of the first caption token, one for all rows or
        int64 (R,).
        """
        tokens, rows = tokens.clone(), torch.arange(len(tokens))
        tokens[rows, start] = self.piece[tokens[rows, start]]
        return tokens

    def undo(self, ids: Tensor, start: int) -> Tensor:
        """Replace the piece at position `start` by its word. Return a copy of `ids`.

        ids: int64 (L,), on the CPU.
        """
        ids = ids.clone()
        ids[start] = self.word[ids[start]]
        return ids

    def word_logits(self, logits: Tensor) -> Tensor:
        """Convert logits (B, V) of the first caption token to logits of words.

        A word gets the higher one of the logits of `word` and `##word`. A piece gets -inf. logits:
        on the CPU.
        """
        is_piece = self.word != torch.arange(len(self.word))  # (V,)
        return logits.maximum(logits[:, self.piece]).masked_fill(is_piece, float("-inf"))
