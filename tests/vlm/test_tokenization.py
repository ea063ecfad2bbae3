"""Captions are tokenised within their chat; tokens are joined to words."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from captioning.models.score_tokens import END, join_pieces
from tests.smile import tiny_vlm
from vlm.prompt import PromptProcessor, Turn
from vlm.tokenization import CaptionTokenizer

MARKS = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}


def byte_level():
    """A token begins with the space before it, as in GPT-2 and Qwen."""
    pieces = ["a", "r", "e", "d", "i", "n", "g", "s", ":", "Ġ", "\u010a"]
    pairs = ["Ġ r", "Ġr e", "Ġre d", "i n", "in g", "Ġ a", "r e"]
    merges = [tuple(pair.split()) for pair in pairs]
    known = ["<pad>", "<end>", "<unk>", *pieces, *("".join(pair) for pair in merges)]
    made = Tokenizer(models.BPE({token: n for n, token in enumerate(known)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<pad>", "<end>", "<unk>"])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **MARKS)


def word_pieces():
    """A piece that continues a word begins with ##, as in BERT."""
    known = ["<pad>", "<end>", "<unk>", "a", "red", "r", "##ing", "##s"]
    ids = {token: n for n, token in enumerate(known)}
    made = Tokenizer(models.WordPiece(ids, unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.WhitespaceSplit(), decoders.WordPiece()
    made.add_special_tokens(["<pad>", "<end>", "<unk>"])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **MARKS)


def written(words, text):
    return words.tokenizer.convert_ids_to_tokens(words.ids(text, 20))


@pytest.mark.parametrize(
    ("asked", "between", "expected"),
    [
        ("a:", " ", ["Ġa", "Ġred", "<end>"]),  # after "Assistant:"
        ("a\n", "", ["a", "Ġred", "<end>"]),  # after a line's end
        ("r", "", ["a", "Ġred", "<end>"]),
    ],
)
def test_a_caption_is_read_where_it_stands(asked, between, expected):
    words = CaptionTokenizer(byte_level(), Turn(asked, between, "<end>"), [1])
    assert written(words, "a red") == expected


def test_a_question_does_not_lend_its_last_letter_to_the_caption():
    words = CaptionTokenizer(byte_level(), Turn("r", "", ""), [1])
    assert byte_level().tokenize("red")[0] == "re"
    assert written(words, "ed") == ["e", "d", "<end>"]


@pytest.mark.parametrize("tokenizer", [byte_level, word_pieces])
def test_pieces_are_joined_to_words(tokenizer):
    words = CaptionTokenizer(tokenizer(), Turn("", "", ""), [1])
    ids = torch.tensor(words.ids("rings a red", 20))
    found, places = join_pieces(words, ids)
    assert found == ["rings", "a", "red", END]
    assert [place for of_word in places for place in of_word] == list(range(len(ids)))
    assert words.decode(ids) == "rings a red"


@pytest.mark.parametrize(
    ("turn", "of_model", "end"),
    [
        ("<end>\n", [7], [1, 7]),  # the template's
        ("s", [7, 1], [1, 7]),  # the tokenizer's
        ("", [7], [7]),  # the model's, as BLIP-2's
    ],
)
def test_a_turn_ends_by_the_template_the_tokenizer_or_the_model(turn, of_model, end):
    words = CaptionTokenizer(byte_level(), Turn("", "", turn), of_model)
    assert words.end == end[0] and words.end_tokens == end


def test_no_end_is_refused():
    tokenizer = byte_level()
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no end token"):
        CaptionTokenizer(tokenizer, Turn("", "", ""), [])


ASKS = "{% for m in messages %}{{ m.role }}:{% for c in m.content %}"
SAYS = "{% if c.type == 'image' %}<image>{% else %} {{ c.text }}{% endif %}{% endfor %}"
ENDS = "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}"


@pytest.mark.parametrize(
    ("asked", "between"),
    [("assistant:", " "), ("assistant\n", "")],  # in the second, no answer begins as it is asked
)
def test_what_a_chat_template_writes_around_a_caption_is_its_turn(asked, between, tmp_path):
    tiny_vlm.write(str(tmp_path))
    processor = transformers.AutoProcessor.from_pretrained(tmp_path)
    processor.chat_template = ASKS + SAYS + ENDS + asked + "{% endif %}"
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    parts = SimpleNamespace(name="x", config=config, processor=processor)
    before = f"user:<image> look<end_of_utterance>\n{asked}"
    assert PromptProcessor(parts, "look ").turn == Turn(before, between, "<end_of_utterance>")
