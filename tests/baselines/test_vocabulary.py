"""Words to ids and back, word vectors; captioners that are built from a configuration."""

import pytest
import torch
from torch import nn

from baselines.vocabulary import Vocabulary, load_word_vectors, split_words
from captioning.config import load_config
from captioning.models.build import captioner_from, trained_config
from captioning.runtime.errors import UserError
from decoding.characters import join_characters
from tests.programs import raises_line
from tests.tiny import CLASSIC

CAPTIONS = ["a dog runs", "a dog's ball", "A man, a plan", "a dog sits"]


def test_words_are_lowercase_without_punctuation_in_any_script():
    words = ["a", "man's", "well-lit", "café", "2", "dogs"]
    assert split_words("A man's well-lit café, (2 dogs)!") == words
    assert split_words("- ' ...") == []
    marked = "कुत्ता दौड़ता है หมาวิ่ง cafe\u0301"  # vowel signs and accents of their own
    assert split_words(marked) == marked.split()


def test_a_chinese_character_is_a_word():
    words = ["一", "只", "red", "狗", "タ", "ワ", "ー"]
    assert split_words("一只 Red狗。タワー") == words
    vocabulary = Vocabulary([*words, "a"])
    ids = vocabulary.encode(["一只狗 a red"], 20)
    assert join_characters(vocabulary.decode(ids[0])) == "一只狗 a red"


def test_the_most_frequent_words_are_kept_in_a_fixed_order():
    words = ["a", "dog", "ball", "dog's", "man", "plan", "runs", "sits"]
    assert Vocabulary.count(CAPTIONS).words == Vocabulary.count(CAPTIONS[::-1]).words == words
    assert Vocabulary.count(CAPTIONS, size=7).words == ["a", "dog", "ball"]
    assert Vocabulary.count(CAPTIONS, min_count=2).words == ["a", "dog"]
    prompted = Vocabulary.count(CAPTIONS, size=8, prompt="a picture of ")
    assert prompted.words == ["a", "picture", "of", "dog"]
    for limits in ({"size": 6, "prompt": "of two"}, {"min_count": 1000}):
        with raises_line(ValueError, "leave no word for captions", start="vocabulary_size "):
            Vocabulary.count(CAPTIONS, **limits)


def test_captions_become_padded_ids_and_words_again():
    vocabulary = Vocabulary(["a", "dog", "runs"])
    assert vocabulary.tokens[:4] == ["<NULL>", "<START>", "<END>", "<UNK>"]
    ids = vocabulary.encode(["A dog runs", "a zebra", ""], 20)
    assert ids.tolist() == [[1, 4, 5, 6, 2], [1, 4, 3, 2, 0], [1, 2, 0, 0, 0]]
    assert ids.dtype == torch.int64
    cut = vocabulary.encode(["a dog runs", "a"], 4)
    assert cut.tolist() == [[1, 4, 5, 2], [1, 4, 2, 0]]
    assert vocabulary.decode(torch.tensor([1, 4, 5, 3, 6, 2, 0])) == "a dog runs"
    assert vocabulary.encode_prompt("a dog ").tolist() == [1, 4, 5]
    assert vocabulary.encode_prompt("").tolist() == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2 3 4\ncat 1 2 3 4\n", "it has no 3 numbers (embed_dim)"),
        ("cat 1 2 x\n", "could not convert"),
    ],
)
def test_a_file_of_word_vectors_that_does_not_fit_is_one_line(tmp_path, text, message):
    path = tmp_path / "glove.txt"
    path.write_text(text)
    with raises_line(ValueError, message, start=f"word_vectors: cannot read {path}: "):
        load_word_vectors(nn.Embedding(6, 3), Vocabulary(["dog", "cat"]), path)


@pytest.fixture
def build(scenes_config):
    def build(*overrides):
        config = load_config(scenes_config, [*CLASSIC, "prompt=", *overrides])
        return captioner_from(config, None)[0]

    return build


def test_known_words_take_the_vectors_of_a_file_scaled_to_length_one(build, tmp_path):
    path, rest = tmp_path / "glove.txt", " 0" * 14
    lines = (f"naïve 9 9{rest}", f"triangle 3 4{rest}", f"triangle at home.com 9 9{rest}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    captioner = build("model=rnn", f"word_vectors={path}", "normalise_embeddings=true")
    weight = captioner.decoder.embedding.weight.detach()
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)))
    triangle = captioner.tokenizer.ids["triangle"]
    torch.testing.assert_close(weight[triangle, :2], torch.tensor([0.6, 0.8]))
    assert (weight[:, 2:].abs().sum(1) == 0).nonzero().tolist() == [[triangle]]  # others stay


def test_a_checkpoint_of_a_run_with_torchvisions_network_names_its_commit(build, tmp_path):
    captioner, path = build("model=lstm", "encoder=resnet18"), str(tmp_path / "former.pth")
    weights = {
        name.replace("encoder.network.body.", "encoder.network."): value
        for name, value in captioner.state_dict().items()
        if name not in ("encoder.network.mean", "encoder.network.std")
    }
    # Keys of that time, which have no effect.
    config = {**captioner.config.model_dump(), "encoder_features": "cache", "tie_embeddings": False}
    content = {"config": config, **captioner.saved_beside_weights()}
    torch.save({"model": captioner.state_dict(), **content}, path)
    assert captioner_from(trained_config(path, None), path)[1].endswith("every key matched")
    torch.save({"model": weights, **content}, path)
    with raises_line(UserError, "former.pth has torchvision's network; use it with commit 467"):
        captioner_from(trained_config(path, None), path)


def test_a_copy_is_built_from_what_is_saved_beside_the_weights(build):
    captioner = build("model=lstm")
    copy, _ = captioner_from(captioner.config, None, captioner.saved_beside_weights())
    copy.load_state_dict(captioner.state_dict())
    assert copy.tokenizer.words == captioner.tokenizer.words
