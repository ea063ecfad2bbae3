"""A file of word vectors, and vectors of length 1."""

import pytest
import torch
from torch import nn

from baselines.vocabulary import load_word_vectors, normalise_embedding

TOKENS = ["<UNK>", "dog", "cat", "naïve"]


def test_known_words_take_their_vectors_and_others_stay(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 9 9 9\ndog 0.5 -1 2e-1\nnaïve 1 2 3\n. 1 1 1\n", encoding="utf-8")
    embedding = nn.Embedding(4, 3)
    before = embedding.weight.detach().clone()
    assert load_word_vectors(embedding, TOKENS, path) == 2
    expected = torch.tensor([[0.5, -1, 0.2], [1, 2, 3]])
    torch.testing.assert_close(embedding.weight[[1, 3]].detach(), expected)
    assert torch.equal(embedding.weight[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2\ncat 1 2\n", "line 1: 2 numbers, but embed_dim is 3"),
        ("the 1 2 3 4\n", "line 1: 4 numbers, but embed_dim is 3"),
        ("the 1 2 3\ncat 1 2\n", "line 2: 2 numbers, but embed_dim is 3"),
        ("cat 1 2 x\n", "line 1: could not convert"),
        ("the 1 2 3\n", "none of the 4 words"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path, text, message):
    path = tmp_path / "glove.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        load_word_vectors(nn.Embedding(4, 3), TOKENS, path)
    assert str(error.value).startswith("word_vectors: ") and "\n" not in str(error.value)


def test_words_with_spaces_are_no_others(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2 3\ncat at home.com 4 5 6\ncat 7 8 9\n")
    embedding = nn.Embedding(4, 3)
    assert load_word_vectors(embedding, TOKENS, path) == 1
    assert [7, 8, 9] in embedding.weight.tolist()


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"word_vectors: cannot read .*glove\.txt"):
        load_word_vectors(nn.Embedding(4, 3), TOKENS, tmp_path / "glove.txt")


def test_every_vector_has_length_one_and_keeps_its_direction():
    embedding = nn.Embedding(5, 3)
    before = embedding.weight.detach().clone()
    normalise_embedding(embedding)
    torch.testing.assert_close(embedding.weight.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(
        nn.functional.cosine_similarity(embedding.weight, before), torch.ones(5)
    )
