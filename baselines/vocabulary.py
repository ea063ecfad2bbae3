"""Builds a vocabulary from the words of training captions, and loads pre-trained word vectors."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Union

import regex  # its \w includes vowel signs and combining accents
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

SPECIAL_TOKENS = ("<NULL>", "<START>", "<END>", "<UNK>")
UNKNOWN_WORD = SPECIAL_TOKENS[3].lower()  # captioning.unpack writes this for unknown words
_WORD = regex.compile(rf"{UNKNOWN_WORD}|\w+(?:['-]\w+)*")


def split_words(text: str) -> list[str]:
    """The words of a text in lower case, including <unk>. A word may contain ' and - inside."""
    return _WORD.findall(text.lower())


class Vocabulary:
    """Converts captions to word ids and back.

    words: their ids start at 4, after the special tokens. Other words become <UNK>. Raises
    ValueError for a word that occurs twice or is a special token.
    """

    pad, start, end, unknown = range(len(SPECIAL_TOKENS))

    def __init__(self, words: Sequence[str]):
        self.tokens = [*SPECIAL_TOKENS, *words]
        self._ids = {token: number for number, token in enumerate(self.tokens)}
        if len(self._ids) < len(self.tokens):
            twice = next(token for token, count in Counter(self.tokens).items() if count > 1)
            raise ValueError(f"vocabulary: {twice!r} occurs twice")

    @classmethod
    def count(
        cls, captions: Iterable[str], size: int = 6400, min_count: int = 1, prompt: str = ""
    ) -> "Vocabulary":
        """A vocabulary of the most frequent words, of at most `size` ids with the special tokens.

        A word must occur at least `min_count` times. Ties are broken alphabetically. The words of
        the prompt are always included. Raises ValueError if `size` leaves no id for caption words,
        or if no word is frequent enough.
        """
        counts = Counter(word for caption in captions for word in split_words(caption))
        del counts[UNKNOWN_WORD]
        of_prompt = dict.fromkeys(split_words(prompt))
        available = size - len(SPECIAL_TOKENS) - len(of_prompt)
        if available < 1:
            raise ValueError(
                f"vocabulary_size is {size}; it must be {size - available + 1} or more"
            )
        ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        frequent = [word for word, n in ranked if n >= min_count and word not in of_prompt]
        if not frequent:
            raise ValueError(f"min_word_count is {min_count}, but no word occurs so often")
        return cls([*of_prompt, *frequent[:available]])

    @property
    def words(self) -> list[str]:
        """The words without special tokens; Vocabulary(words) is an equal vocabulary."""
        return self.tokens[len(SPECIAL_TOKENS) :]

    def __len__(self) -> int:
        return len(self.tokens)

    def token(self, token_id: int) -> str:
        return self.tokens[token_id]

    def encode(self, texts: list[str], max_length: int) -> tuple[Tensor, Tensor]:
        """Ids and mask (1 token, 0 padding), int64 (R, n), where n <= max_length.

        <START> comes first and <END> last, even if a text is cut.
        """
        rows = [torch.tensor([*self._begin(text)[: max_length - 1], self.end]) for text in texts]
        ids = pad_sequence(rows, batch_first=True, padding_value=self.pad)
        return ids, (ids != self.pad).long()

    def encode_prompt(self, prompt: str) -> Tensor:
        """int64 (n,): <START> and the prompt's words, without <END>."""
        return torch.tensor(self._begin(prompt))

    def _begin(self, text: str) -> list[int]:
        return [self.start, *(self._ids.get(word, self.unknown) for word in split_words(text))]

    def decode(self, ids: Tensor) -> str:
        """The words of ids (n,), joined by spaces. Special tokens are left out."""
        first = len(SPECIAL_TOKENS)
        return " ".join(self.tokens[number] for number in ids.tolist() if number >= first)


def load_word_vectors(
    embedding: nn.Embedding, tokens: Sequence[str], path: Union[str, Path]
) -> int:
    """Copy pre-trained vectors of `tokens` into an embedding. Return the number of tokens found.

    The file has GloVe's format (Pennington et al. 2014): each line is a word and its numbers,
    separated by spaces. Raises ValueError, which names the line, for another format or width, and
    for a file that cannot be read or has none of the words.
    """
    numbers = {token: number for number, token in enumerate(tokens)}
    width, found = embedding.embedding_dim, 0
    try:
        with open(path, encoding="utf-8") as lines, torch.no_grad():
            for line_number, line in enumerate(lines, 1):
                if line_number == 1:
                    _vector(line.split()[1:], width, "line 1")
                # Split from the right: some words in GloVe's largest file contain spaces.
                word, *values = line.rstrip().rsplit(" ", width)
                if word not in numbers:
                    continue
                embedding.weight[numbers[word]] = _vector(values, width, f"line {line_number}")
                found += 1
    except (OSError, ValueError) as error:
        raise ValueError(f"word_vectors: cannot read {path}: {error}") from error
    if not found:
        raise ValueError(f"word_vectors: {path} has none of the {len(tokens)} words")
    return found


def _vector(values: list[str], width: int, where: str) -> Tensor:
    if len(values) != width:
        raise ValueError(f"{where} has {len(values)} numbers, but embed_dim is {width}")
    try:
        vector = torch.tensor([float(value) for value in values])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if not vector.isfinite().all():
        raise ValueError(f"{where} has a number that is not finite")
    return vector


def normalise_embedding(embedding: nn.Embedding) -> None:
    """Scale every word vector to length 1."""
    with torch.no_grad():
        embedding.weight.copy_(nn.functional.normalize(embedding.weight, dim=1))
