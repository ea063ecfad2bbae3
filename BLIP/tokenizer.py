"""BERT's tokeniser with BLIP's two extra tokens, and first-token shifting."""

import re
from collections import Counter
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from BLIP.weights.download import hub_file

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class TokenizerError(ValueError):
    """There is no usable vocabulary at the given place."""


class CaptionTokenizer:
    """Captions to token ids and back.

    source: a hub name such as "bert-base-uncased", a folder that holds vocab.txt, or that file.
    [DEC], which starts a caption, and [ENC] are appended to the vocabulary. Raises TokenizerError.
    """

    def __init__(self, source: str):
        self.bert = _load_bert(_find_vocabulary(source))
        self.bert.add_special_tokens(["[DEC]", "[ENC]"])
        named = map(self.bert.token_to_id, ("[DEC]", "[SEP]", "[PAD]", "[UNK]"))
        self.start, self.end, self.pad, self.unknown = named

    def __len__(self) -> int:
        return self.bert.get_vocab_size()

    def token(self, token_id: int) -> str:
        return self.bert.id_to_token(token_id)

    def ids(self, text: str) -> list[int]:
        """The ids of a text, without special tokens."""
        return self.bert.encode(_unicode(text), add_special_tokens=False).ids

    def encode(self, texts: list[str], max_length: int) -> tuple[Tensor, Tensor]:
        """int64 ids and mask (1 real, 0 padding), each (R, n) with n <= max_length.

        A row begins with [DEC] and ends with [SEP], even if the text was truncated.
        """
        rows = [[self.start, *self.ids(text)[: max_length - 2], self.end] for text in texts]
        masks = [torch.ones(len(row), dtype=torch.int64) for row in rows]
        ids = pad_sequence([torch.tensor(row) for row in rows], True, self.pad)
        return ids, pad_sequence(masks, True)

    def encode_prompt(self, prompt: str) -> Tensor:
        """int64 (n,): [DEC] and the prompt's tokens, without an end."""
        return torch.tensor([self.start, *self.ids(prompt)])

    def decode(self, ids: Tensor) -> str:
        """The text of ids (n,), without special tokens and without spaces before punctuation."""
        text = self.bert.decode(ids.tolist(), skip_special_tokens=True)
        text = re.sub(r" ([.?!,])", r"\1", text).replace(" ' ", "'")
        return re.sub(r" (n't|'(?:m|s|ve|re))", r"\1", text)


def _unicode(text: str) -> str:
    """Drop lone surrogates, which JSON can hold, as transformers 4.15.0 does; 5.x fails."""
    return text.encode("utf-8", "ignore").decode("utf-8")


def _find_vocabulary(source: str) -> Path:
    path = Path(source)
    if path.is_dir():
        path = path / "vocab.txt"
    if path.is_file():
        return path
    try:
        return hub_file(source, "vocab.txt")
    except Exception as error:  # the hub client raises types of its own and of its HTTP library
        raise TokenizerError(
            f"tokenizer: found no vocabulary at {source!r} and could not fetch one of that name; "
            "give a folder that holds vocab.txt, or connect to the network"
        ) from error


def _load_bert(vocabulary: Path) -> Tokenizer:
    """transformers' BertTokenizer on a vocabulary file, without the seconds of its import.

    Raises TokenizerError.
    """
    words = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    lacking = [token for token in SPECIAL_TOKENS if token not in words]
    if lacking:
        raise TokenizerError(
            f"tokenizer: {vocabulary} is no BERT vocabulary: it lacks {lacking[0]}"
        )
    word, count = Counter(words).most_common(1)[0]
    if count > 1:  # the ids of [DEC] and [ENC] would be those of other words
        raise TokenizerError(
            f"tokenizer: {vocabulary} is no BERT vocabulary: {word!r} is on {count} of its lines"
        )
    ids = {word: number for number, word in enumerate(words)}
    bert = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    bert.normalizer = normalizers.BertNormalizer()
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bert.decoder = decoders.WordPiece(cleanup=False)  # clean-up differs between versions
    bert.add_special_tokens(list(SPECIAL_TOKENS))
    return bert


class FirstTokenShift:
    """Maps the first token of a caption, `word`, to the piece `##word`, and back.

    SMILE's softmax is over the words of the caption. A first "a" may occur again later; `##a`
    occurs once. A word without a piece is unchanged. Raises ValueError for a vocabulary without
    pieces. Source: SMILE (arXiv 2306.13460), an alternative to first-token MLE.
    """

    def __init__(self, tokenizer: CaptionTokenizer):
        ids = {tokenizer.token(number): number for number in range(len(tokenizer))}
        self.piece = torch.arange(len(tokenizer))  # (V,): the piece of each word
        for word, number in ids.items():
            self.piece[number] = ids.get(f"##{word}", number)
        shifted = self.piece != torch.arange(len(self.piece))
        if not shifted.any():
            raise ValueError("first_token_shift: the vocabulary has no piece ##word of any word")
        self.word = torch.arange(len(tokenizer))
        self.word[self.piece[shifted]] = shifted.nonzero().squeeze(1)

    def apply(self, tokens: Tensor, start: int) -> Tensor:
        """Shift the token at `start`, the length of the prompt, of each row of tokens (R, N)."""
        tokens = tokens.clone()
        tokens[:, start] = self.piece[tokens[:, start]]
        return tokens

    def undo(self, ids: Tensor, start: int) -> Tensor:
        """Turn the piece at `start` of ids (L,), on the CPU, back into a word."""
        ids = ids.clone()
        ids[start] = self.word[ids[start]]
        return ids

    def read(self, logits: Tensor) -> Tensor:
        """Turn logits (B, V) of a first token, on the CPU, into logits of words.

        A word gets the higher logit of `word` and `##word`, a piece -inf.
        """
        pieces = self.word != torch.arange(len(self.word))  # (V,)
        return logits.maximum(logits[:, self.piece]).masked_fill(pieces, float("-inf"))
