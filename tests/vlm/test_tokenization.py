"""Captions are tokenised within their chat; tokens are joined to words."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from captioning.models.score_tokens import END, join_pieces
from vlm.library import load_parts
from vlm.prompt import PromptProcessor, Turn
from vlm.tokenization import CaptionTokenizer

SPECIAL = ["<pad>", "<end>", "<unk>"]


def made(model, pre_tokenizer, decoder):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    tokenizer.add_special_tokens(SPECIAL)
    names = dict(zip(("pad_token", "eos_token", "unk_token"), SPECIAL))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def ids_of(tokens):
    return {token: n for n, token in enumerate([*SPECIAL, *tokens])}


def byte_level():
    """A token begins with the space before it, as in GPT-2 and Qwen."""
    merges = [tuple(pair.split()) for pair in ["Ġ r", "Ġr e", "Ġre d", "i n", "in g", "Ġ a", "r e"]]
    tokens = [*"aredings:ĠĊ", *("".join(pair) for pair in merges)]
    model = models.BPE(ids_of(dict.fromkeys(tokens)), merges)
    return made(model, pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())


def word_pieces():
    """A piece that continues a word begins with ##, as in BERT."""
    model = models.WordPiece(ids_of(["a", "red", "r", "##ing", "##s"]), unk_token="<unk>")
    return made(model, pre_tokenizers.WhitespaceSplit(), decoders.WordPiece())


def tokens_of(caption_tokenizer, text):
    return caption_tokenizer.tokenizer.convert_ids_to_tokens(caption_tokenizer.ids(text, 20))


@pytest.mark.parametrize(
    ("prompt", "prefix", "caption", "expected"),
    [
        ("a:", " ", "a red", ["Ġa", "Ġred", "<end>"]),  # after "Assistant:"
        ("a\n", "", "a red", ["a", "Ġred", "<end>"]),  # after a line's end
        ("r", "", "ed", ["e", "d", "<end>"]),  # "red" would be "re", "d"
    ],
)
def test_a_caption_is_tokenised_where_it_stands(prompt, prefix, caption, expected):
    tokenizer = CaptionTokenizer(byte_level(), Turn(prompt, prefix, "<end>"), [1])
    assert tokens_of(tokenizer, caption) == expected


@pytest.mark.parametrize("tokenizer", [byte_level, word_pieces])
def test_pieces_are_joined_to_words(tokenizer):
    words = CaptionTokenizer(tokenizer(), Turn("", "", ""), [1])
    ids = torch.tensor(words.ids("rings a red", 20))
    found, places = join_pieces(words, ids)
    assert found == ["rings", "a", "red", END]
    assert [place for of_word in places for place in of_word] == list(range(len(ids)))
    assert words.decode(ids) == "rings a red"


@pytest.mark.parametrize(
    ("suffix", "of_model", "end"),
    [
        ("<end>\n", [7], [1, 7]),  # the template's
        ("s", [7, 1], [1, 7]),  # the tokenizer's
        ("", [7], [7]),  # the model's, as BLIP-2's
    ],
)
def test_a_turn_ends_by_the_template_the_tokenizer_or_the_model(suffix, of_model, end):
    library, turn = byte_level(), Turn("", "", suffix)
    tokenizer = CaptionTokenizer(library, turn, of_model)
    assert tokenizer.end == end[0] and tokenizer.end_tokens == end
    library.eos_token = None
    with pytest.raises(ValueError, match="no end token"):
        CaptionTokenizer(library, Turn("", "", ""), [])


def test_the_turn_is_what_the_chat_template_writes_around_a_caption(vlm_folder):
    folder, _ = vlm_folder("Idefics3ForConditionalGeneration")
    turn = PromptProcessor(load_parts(folder), "look ").turn
    assert turn == Turn("<start>user <image>look<end>\n<start>assistant", " ", "<end>")


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("start", [["<think>"], []])  # the prompt may have the opening tag
def test_a_caption_has_no_thoughts(is_special, start):
    library = word_pieces()
    tags = [AddedToken(tag, special=is_special) for tag in ("<think>", "</think>")]
    library.add_tokens(tags, special_tokens=is_special)
    tokenizer = CaptionTokenizer(library, Turn("a", "", "<end>"), [1])

    def decode(*tokens):
        return tokenizer.decode(torch.tensor(library.convert_tokens_to_ids(list(tokens))))

    assert decode(*start, "r", "##ing", "</think>", "red", "##s", "<end>", "<pad>") == "reds"
    assert decode("red", "<end>") == "red" and decode("<think>", "red") == ""
