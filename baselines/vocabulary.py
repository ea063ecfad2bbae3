"""Builds a vocabulary from the words of training captions, and loads pre-trained word vectors."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Union

import regex  # unlike that of `re`, its \w includes vowel signs and combining accents
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from decoding.characters import CHARACTERS, join_characters

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
    first word is 4. A word that is not in `words` becomes <UNK>. Raises ValueError for a word that
    occurs twice or is a special token.
    """

    pad, start, end, unknown = range(len(SPECIAL_TOKENS))

    def __init__(self, words: Sequence[str]):
        self.tokens = [*SPECIAL_TOKENS, *words]
        self._ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        if len(self._ids) < len(self.tokens):
            repeated = next(token for token, count in Counter(self.tokens).items() if count > 1)
            raise ValueError(f"vocabulary: {repeated!r} occurs twice")

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
        available = size - len(SPECIAL_TOKENS) - len(prompt_words)
        if available < 1:
            raise ValueError(
                f"vocabulary_size is {size}; it must be {size - available + 1} or more"
            )
        ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        frequent = [word for word, n in ranked if n >= min_count and word not in prompt_words]
        if not frequent:
            raise ValueError(f"min_word_count is {min_count}, but no word occurs so often")
        return cls([*prompt_words, *frequent[:available]])

    @property
    def words(self) -> list[str]:
        """The words without special tokens. Vocabulary(words) builds the same vocabulary."""
        return self.tokens[len(SPECIAL_TOKENS) :]

    def __len__(self) -> int:
        return len(self.tokens)

    def token(self, token_id: int) -> str:
        return self.tokens[token_id]

    def encode(self, texts: list[str], max_length: int) -> tuple[Tensor, Tensor]:
        """Return ids and mask (1 token, 0 padding) of R texts, int64 (R, n) with n <= max_length.

        Each row begins with <START> and ends with <END>, even if the text is truncated.
        """
        rows = [
            torch.tensor([*self._ids_without_end(text)[: max_length - 1], self.end])
            for text in texts
        ]
        ids = pad_sequence(rows, batch_first=True, padding_value=self.pad)
        return ids, (ids != self.pad).long()

    def encode_prompt(self, prompt: str) -> Tensor:
        """Return int64 (n,): <START> and the prompt's words, without <END>."""
        return torch.tensor(self._ids_without_end(prompt))

    def _ids_without_end(self, text: str) -> list[int]:
        return [self.start, *(self._ids.get(word, self.unknown) for word in split_words(text))]

    def decode(self, ids: Tensor) -> str:
        """Return the words of ids (n,) as text. Special tokens are left out."""
        first_word_id = len(SPECIAL_TOKENS)
        words = (self.tokens[token_id] for token_id in ids.tolist() if token_id >= first_word_id)
        return join_characters(" ".join(words))


def load_word_vectors(
    embedding: nn.Embedding, tokens: Sequence[str], path: Union[str, Path]
) -> None:
    """Copy pre-trained vectors of `tokens` from a file into an embedding.

    tokens: the text of each id of the embedding. A token that the file lacks keeps its vector. The
    file has GloVe's format (Pennington et al. 2014): each line is a word and its numbers, separated
    by spaces. Raises ValueError for a line with another format or width, for a file that cannot be
    read, and for a file with none of the tokens.
    """
    token_ids = {token: token_id for token_id, token in enumerate(tokens)}
    width, found = embedding.embedding_dim, False
    try:
        with open(path, encoding="utf-8") as lines, torch.no_grad():
            for line_number, line in enumerate(lines, 1):
                if line_number == 1:
                    _parse_vector(line.split()[1:], width, "line 1")
                # Split from the right, because some words in GloVe's largest file contain spaces.
                word, *values = line.rstrip().rsplit(" ", width)
                if word in token_ids:
                    vector = _parse_vector(values, width, f"line {line_number}")
                    embedding.weight[token_ids[word]], found = vector, True
    except (OSError, ValueError) as error:
        raise ValueError(f"word_vectors: cannot read {path}: {error}") from error
    if not found:
        raise ValueError(f"word_vectors: {path} has none of the {len(tokens)} words")


def _parse_vector(values: list[str], width: int, location: str) -> Tensor:
    if len(values) != width:
        raise ValueError(f"{location} has {len(values)} numbers, but embed_dim is {width}")
    try:
        vector = torch.tensor([float(value) for value in values])
    except ValueError as error:
        raise ValueError(f"{location}: {error}") from error
    if not vector.isfinite().all():
        raise ValueError(f"{location} has a number that is not finite")
    return vector
