"""Builds a vocabulary from the words of training captions, and loads pre-trained word vectors."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import regex  # unlike that of `re`, its \w includes vowel signs and combining accents
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from decoding.characters import CHARACTERS

SPECIAL_TOKENS = ("<NULL>", "<START>", "<END>", "<UNK>")
UNKNOWN_WORD = SPECIAL_TOKENS[3].lower()  # `captioning.unpack` writes <unk> for unknown words
_LETTERS = rf"[\w--[{CHARACTERS}]]+"
_WORD = regex.compile(rf"(?V1){UNKNOWN_WORD}|[\w&&[{CHARACTERS}]]|{_LETTERS}(?:['-]{_LETTERS})*")


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words, including <unk>. A word may contain ' and - inside.

    A Chinese or Japanese character is a word.
    """
    return _WORD.findall(text.lower())


class Vocabulary:
    """Converts captions to word ids and back.

    words: the words, without SPECIAL_TOKENS. Ids 0 to 3 are the special tokens, and the id of the
    first word is 4. A word that is not in `words` becomes <UNK>.
    """

    pad, start, end, unknown = range(len(SPECIAL_TOKENS))

    def __init__(self, words: Sequence[str]):
        self.words = list(words)
        self.tokens = [*SPECIAL_TOKENS, *words]
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}

    @classmethod
    def count(
        cls, captions: Iterable[str], size: int = 6400, min_count: int = 1, prompt: str = ""
    ) -> "Vocabulary":
        """Build a vocabulary of the most frequent words.

        size: the maximum number of ids, including special tokens. min_count: a word is included
        only if it occurs at least this often. Of words that occur equally often, the first in
        alphabetical order is preferred. The words of the prompt are always included. Raises
        ValueError if `size` leaves no id for caption words, or if no word is frequent enough.
        """
        counts = Counter(word for caption in captions for word in split_words(caption))
        del counts[UNKNOWN_WORD]
        prompt_words = dict.fromkeys(split_words(prompt))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        frequent = [w for w in ranked if counts[w] >= min_count and w not in prompt_words]
        words = [*prompt_words, *frequent][: size - len(SPECIAL_TOKENS)]
        if len(words) <= len(prompt_words):
            raise ValueError(
                f"vocabulary_size {size} and min_word_count {min_count} leave no word for captions"
            )
        return cls(words)

    def __len__(self) -> int:
        return len(self.tokens)

    def token(self, token_id: int) -> str:
        return self.tokens[token_id]

    def encode(self, texts: list[str], max_length: int) -> Tensor:
        """Return ids of R texts, int64 (R, n) with n <= max_length, padded with `pad`.

        Each row begins with <START> and ends with <END>, even if the text is truncated.
        """
        rows = [
            F.pad(self.encode_prompt(text)[: max_length - 1], (0, 1), value=self.end)
            for text in texts
        ]
        return pad_sequence(rows, batch_first=True, padding_value=self.pad)

    def encode_prompt(self, prompt: str) -> Tensor:
        """Return int64 (n,): <START> and the prompt's words, without <END>."""
        words = split_words(prompt)
        return torch.tensor([self.start, *(self.ids.get(word, self.unknown) for word in words)])

    def decode(self, ids: Tensor) -> str:
        """Return the words of ids (n,) as text. Special tokens are left out."""
        words = (self.tokens[token_id] for token_id in ids.tolist())
        return " ".join(word for word in words if word not in SPECIAL_TOKENS)


def load_word_vectors(embedding: nn.Embedding, tokenizer: Any, path: str) -> None:
    """Copy pre-trained vectors of the tokenizer's tokens from a file into an embedding.

    A token that the file lacks keeps its vector. The file has GloVe's format (Pennington et al.
    2014): each line is a word and its numbers, separated by spaces. Raises ValueError for a file
    that cannot be read or has none of the tokens, and for a token without `embed_dim` numbers.
    """
    width = embedding.embedding_dim
    ids = {tokenizer.token(token_id): token_id for token_id in range(len(tokenizer))}
    vectors = {}  # {id: vector}
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                # Split from the right, because some words in GloVe's largest file contain spaces.
                word, *values = line.rstrip().rsplit(" ", width)
                if word in ids:
                    vectors[ids[word]] = [float(value) for value in values]
        if {len(vector) for vector in vectors.values()} != {width}:
            raise ValueError(f"it has no {width} numbers (embed_dim) for each of the words")
    except (OSError, ValueError) as error:
        raise ValueError(f"word_vectors: cannot read {path}: {error}") from error
    embedding.weight.data[[*vectors]] = torch.tensor([*vectors.values()])
