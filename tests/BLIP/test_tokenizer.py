"""Token ids and decoded text; first-token shifting."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch

from BLIP.checkpoint import settings_of
from BLIP.convert import hf_config, save_hf
from BLIP.from_checkpoint import captioner_of
from BLIP.tokenizer import CaptionTokenizer
from decoding import DecodingSettings
from tests.programs import raises_line, refused
from tests.tiny import SPECIAL_TOKENS

TEXTS = (
    *("", " ", "[CLS] a [MASK] [nothing]", "x" * 101, "tab\tand\nline", "\x00\ufffd\u200b?"),
    *("naïve Ångström ÉCOLE", "東京 タワー", "don't... wait!?", "a\u0301 e\u0308", "3.5kg@home #1"),
    *("the dog 's n't 'm ' s", "Straße İstanbul", "\u2014dash\u2019s", "🙂 smile"),
    *("we've café we're I'm n't ? !", "a well-known 3.5 [SEP]", "they don't care ."),
)


def test_ids_and_texts_are_those_of_transformers_tokeniser_also_of_cocos_captions(shared_data):
    from transformers import BertTokenizer

    path = shared_data / "bert-base-uncased" / "vocab.txt"
    theirs, ours = BertTokenizer.from_pretrained(str(path)), CaptionTokenizer(str(path.parent))
    entries = json.loads((shared_data / "karpathy" / "coco_karpathy_test.json").read_text())
    captions = [caption for entry in entries[:1000] for caption in entry["caption"]]
    ids = ours.encode(captions, max_length=40)
    text = "\n".join(ours.decode(row) for row in ids)
    digest = hashlib.sha256(ids.numpy().tobytes() + text.encode()).hexdigest()
    # As by transformers 4.15.0 and 5.23.0.
    assert digest == "111b7b7c8212d32fae87fbac84c7b749be0e4beb97886404e9e87762fc0238e9"
    for text in TEXTS:
        ids = theirs(text).input_ids[1:-1]
        assert ours.ids(text) == ids, text
        said = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=True)
        assert ours.decode(torch.tensor(ids, dtype=torch.int64)) == said


LANGUAGES = (
    "a Red car, isn't it? café",
    "Ein schöner Tag: zwei Hunde laufen über die Straße",
    "한국 사람이 자전거를 탄다.",
    "一只狗在草地上奔跑，旁边有两个人。3只cat",  # noqa: RUF001
    "東京タワーの前に犬がいる",
)


NAMES = {"pad_token": "<pad>", "unk_token": "<unk>", "sep_token": "</s>", "cls_token": "<s>"}
FLAGS = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
SETTINGS = {
    "defaults": {},
    "cased": {"do_lower_case": False, "strip_accents": False},
    "accents": {"do_lower_case": True, "strip_accents": False},
    "characters": {"tokenize_chinese_chars": False},
    "names": {**NAMES, "unk_token": {"__type": "AddedToken", "content": "<unk>", **FLAGS}},
}


@pytest.mark.parametrize("added", ["added_tokens.json", "additional_special_tokens"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_folder_gives_the_tokens_of_transformers(
    make_captioner, hub_model, tmp_path, name, added
):
    from transformers import BertTokenizerFast

    words = {word for text in LANGUAGES for word in re.findall(r"\w+|\W", text)}
    pieces = {f"##{letter}" for word in words for letter in word}
    lower = {word.lower() for word in words} | {"schoner", "cafe", "uber"}
    special = [*NAMES.values()] if name == "names" else SPECIAL_TOKENS[:4]
    vocabulary = [*special, "[MASK]", *sorted({*words, *lower, *pieces, *"狗人東京在"} - {" ", ""})]
    folder, saved, settings = hub_model, tmp_path / "saved", dict(SETTINGS[name])
    if added == "added_tokens.json":
        (folder / added).write_text(json.dumps({"zweihundert": len(vocabulary)}))
    else:
        settings[added] = ["<photo>"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = BertTokenizerFast.from_pretrained(str(folder))
    theirs.save_pretrained(str(saved))
    (saved / "vocab.txt").unlink(missing_ok=True)
    texts = [*LANGUAGES, "zweihundert <photo> a"]
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert len(vocabulary) in expected[-1]
    converted = tmp_path / "converted"
    save_hf(make_captioner(tokenizer=str(saved)), converted)
    again = BertTokenizerFast.from_pretrained(str(converted))
    assert [again(text, add_special_tokens=False)["input_ids"] for text in texts] == expected
    for source in (folder, folder / "vocab.txt", saved, "owner/name"):
        ours = CaptionTokenizer(str(source))
        again = CaptionTokenizer(ours.files)  # as a checkpoint has them
        for text, ids in zip(texts, expected):
            assert ours.ids(text) == again.ids(text) == ids, (source, text)
        names = (theirs.pad_token_id, theirs.unk_token_id, theirs.sep_token_id)
        assert (ours.pad, ours.unknown, ours.end) == names
        assert ours.start == len(theirs.get_vocab()) == len(ours) - 2
        for ids in (expected[1], expected[-1]):
            decoded = ours.decode(torch.tensor([ours.end, *ids, ours.pad]))
            assert decoded == theirs.decode(ids, skip_special_tokens=True)


WORDS = [*SPECIAL_TOKENS, "a", "man", "", "dog"]  # with an empty line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["[PAD]", "[UNK]", "[CLS]", "word"], "sep_token not found"),
        # [DEC] would silently get the id of another word.
        ([*WORDS, "man"], "it has 'man' on 2 lines"),
        (None, "it is no folder with vocab.txt or tokenizer.json"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_one_line(tmp_path, words, message):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    assert CaptionTokenizer(str(path)).start == len(WORDS)
    path.unlink() if words is None else path.write_text("\n".join(words) + "\n")
    with raises_line(ValueError, f"is not a BERT vocabulary: {message}"):
        CaptionTokenizer(str(path))


@pytest.fixture
def pieces(vocabulary, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text(vocabulary.read_text() + "##a\n##the\n")
    return str(path)


def test_input_and_label_of_the_first_word_become_its_piece(make_captioner, pieces):
    seen, captions = [], [["a red ball on a box"], ["small dog"], ["the cat"]]
    plain = make_captioner(tokenizer=pieces)
    shifted = make_captioner(tokenizer=pieces, first_token_shift=True)
    shifted.load_state_dict(plain.state_dict())
    embeddings = shifted.text_decoder.bert["embeddings"]
    embeddings.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    image = torch.randn(3, 3, 48, 48)
    _, labels = shifted.predictions(image, captions)
    _, unshifted = plain.predictions(image, captions)
    words = [plain.tokenizer.token(number) for number in labels[:, 0].tolist()]
    assert words == ["##a", "small", "##the"]  # small has no piece
    assert torch.equal(labels[:, 1:], unshifted[:, 1:])  # the later "a", too
    assert torch.equal(seen[0][:, len(shifted.prompt_ids)], labels[:, 0])


def test_a_shifted_checkpoint_is_built_with_its_prompt_and_not_converted(
    make_captioner, pieces, tmp_path
):
    settings = {"tokenizer": pieces, "prompt": "picture of the ", "first_token_shift": True}
    captioner = make_captioner(**settings)
    piece = captioner.tokenizer.bert.token_to_id("##a")
    captioner.text_decoder.cls["predictions"].bias.data[piece] = 1e4
    config = {**settings_of(hf_config(captioner)), **settings}
    torch.save({"model": captioner.state_dict(), "config": config}, tmp_path / "run.pth")
    again = captioner_of(str(tmp_path / "run.pth"))
    length = len(again.prompt_ids) + 3
    assert again.shift is not None and length == 7
    decoding = DecodingSettings(num_beams=1, max_length=length, min_length=1)
    assert again.generate(torch.randn(1, 3, 48, 48), decoding) == ["aaa"]  # pieces read as words
    command = ["BLIP.convert", "to-hf", tmp_path / "run.pth", tmp_path / "hf"]
    refused(*command, part="error: the captioner was trained with first_token_shift")
    assert not (tmp_path / "hf").exists()
    Path(pieces).write_text("\n".join(WORDS))
    with raises_line(ValueError, "first_token_shift: no word of the vocabulary has a piece"):
        make_captioner(**settings)
