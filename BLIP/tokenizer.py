"""BERT's tokeniser with BLIP's two extra tokens, the same with every version of them; and
first-token shifting: a caption's first word is told apart from the same word later on."""

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
    """No tokeniser where one was said to be."""


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
        """Of the text alone, nothing before or after it."""
        return self.bert.encode(_unicode(text), add_special_tokens=False).ids

    def encode(self, texts: list[str], max_length: int) -> tuple[Tensor, Tensor]:
        """int64 ids and mask (1 real, 0 padding), each (R, n), n the longest and <= max_length.

        [DEC] stands first and [SEP] last, also where a text was cut.
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
    """Without lone surrogates, which JSON can hold: transformers 4.15.0 drops them, 5.x fails."""
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
    """What transformers' BertTokenizer is on a vocabulary file, without the seconds that it takes
    to import. Raises TokenizerError."""
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
    bert.decoder = decoders.WordPiece(cleanup=False)  # which differs between versions
    bert.add_special_tokens(list(SPECIAL_TOKENS))
    return bert


class FirstTokenShift:
    """The first token of a caption, `word`, becomes the piece `##word`, and back.

    Under SMILE's softmax "a" at the start competes with the caption's other words, where a later
    "a" is among them; `##a` occurs once. A word without a piece stays as it is. Raises ValueError
    for a vocabulary without any. Source: SMILE (arXiv 2306.13460), tried there beside first-token
    MLE.
    """

    def __init__(self, tokenizer: CaptionTokenizer):
        ids = {tokenizer.token(number): number for number in range(len(tokenizer))}
        self.piece = torch.arange(len(tokenizer))  # (V,): what a first token becomes
        for word, number in ids.items():
            self.piece[number] = ids.get(f"##{word}", number)
        shifted = self.piece != torch.arange(len(self.piece))
        if not shifted.any():
            raise ValueError("first_token_shift: the vocabulary has no piece ##word of any word")
        self.word = torch.arange(len(tokenizer))
        self.word[self.piece[shifted]] = shifted.nonzero().squeeze(1)

    def apply(self, tokens: Tensor, start: int) -> Tensor:
        """Tokens (R, N) with that at `start` shifted, the prompt being so long."""
        tokens = tokens.clone()
        tokens[:, start] = self.piece[tokens[:, start]]
        return tokens

    def undo(self, ids: Tensor, start: int) -> Tensor:
        """Ids (L,) on the CPU with that at `start` a word again, so that it can be read."""
        ids = ids.clone()
        ids[start] = self.word[ids[start]]
        return ids

    def read(self, logits: Tensor) -> Tensor:
        """Logits (B, V) of a first token, on the CPU, as those of words: of `word` or `##word`, the
        higher one, and none of `##word`."""
        pieces = self.word != torch.arange(len(self.word))  # (V,)
        return logits.maximum(logits[:, self.piece]).masked_fill(pieces, float("-inf"))
