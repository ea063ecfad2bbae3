"""What the word vectors of a decoder start from: a file in GloVe's format, lengths made equal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Union

import torch
from torch import Tensor, nn


def load_word_vectors(
    embedding: nn.Embedding, tokens: Sequence[str], path: Union[str, Path]
) -> int:
    """Copy the vectors of the tokens that a file has into an embedding; how many it had.

    The file has a line a word, the word and its numbers with spaces between, as GloVe's (Pennington
    et al. 2014). Raises ValueError, naming the line, for one that is not so, for a file of another
    width, and for one that cannot be read or knows none of the words.
    """
    numbers = {token: number for number, token in enumerate(tokens)}
    width, found = embedding.embedding_dim, 0
    try:
        with open(path, encoding="utf-8") as lines, torch.no_grad():
            for line_number, line in enumerate(lines, 1):
                if line_number == 1:
                    _vector(line.split()[1:], width, "line 1")
                # From its end: in the largest of GloVe's files some words hold spaces.
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
        raise ValueError(f"{where}: {len(values)} numbers, but embed_dim is {width}")
    try:
        vector = torch.tensor([float(value) for value in values])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if not vector.isfinite().all():
        raise ValueError(f"{where}: a number is not finite")
    return vector


def normalise_embedding(embedding: nn.Embedding) -> None:
    """Scale every word vector to length 1."""
    with torch.no_grad():
        embedding.weight.copy_(nn.functional.normalize(embedding.weight, dim=1))
