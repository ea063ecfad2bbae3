"""Token ids and decoded text; first-token shifting."""

import hashlib
import json
import re

import pytest
import torch

from BLIP.checkpoint import CheckpointError, settings_of
from BLIP.convert import hf_config, save_hf
from BLIP.from_checkpoint import captioner_of
from BLIP.tokenizer import CaptionTokenizer
from decoding import DecodingSettings
from tests.programs import raises_line, refused
from tests.tiny import SPECIAL_TOKENS


def test_both_versions_agree_on_all_coco_captions(shared_data):
    """The hash was the same with transformers 4.15.0 and 5.23.0."""
    tokenizer = CaptionTokenizer(str(shared_data / "bert-base-uncased"))
    entries = json.loads((shared_data / "karpathy" / "coco_karpathy_test.json").read_text())
    captions = [caption for entry in entries[:1000] for caption in entry["caption"]]
    ids = tokenizer.encode(captions, max_length=40)
    text = "\n".join(tokenizer.decode(row) for row in ids)
    digest = hashlib.sha256(ids.numpy().tobytes() + text.encode()).hexdigest()
    assert digest == "111b7b7c8212d32fae87fbac84c7b749be0e4beb97886404e9e87762fc0238e9"


TEXTS = (
    *("", " ", "[CLS] a [MASK] [nothing]", "x" * 101, "tab\tand\nline", "\x00\ufffd\u200b?"),
    *("naïve Ångström ÉCOLE", "東京 タワー", "don't... wait!?", "a\u0301 e\u0308", "3.5kg@home #1"),
    *("the dog 's n't 'm ' s", "Straße İstanbul", "\u2014dash\u2019s", "🙂 smile"),
    *("we've café we're I'm n't ? !", "a well-known 3.5 [SEP]", "they don't care ."),
)


def test_ids_and_texts_are_those_of_transformers_tokeniser(shared_data):
    from transformers import BertTokenizer

    path = shared_data / "bert-base-uncased" / "vocab.txt"
    theirs, ours = BertTokenizer.from_pretrained(str(path)), CaptionTokenizer(str(path))
    for text in TEXTS:
        ids = theirs(text).input_ids[1:-1]
        assert ours.ids(text) == ids, text
        said = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=True)
        assert ours.decode(torch.tensor(ids, dtype=torch.int64)) == said
    assert [ours.token(i) for i in range(30522)] == theirs.convert_ids_to_tokens(range(30522))


LANGUAGES = (
    "a Red car, isn't it? café",
    "Ein schöner Tag: zwei Hunde laufen über die Straße",
    "한국 사람이 자전거를 탄다.",
    "一只狗在草地上奔跑，旁边有两个人。3只cat",  # noqa: RUF001
    "東京タワーの前に犬がいる",
)


@pytest.fixture(params=["defaults", "cased", "accents", "characters", "names"])
def folders(request, tmp_path):
    """Return a folder with vocab.txt, and one with tokenizer.json, with equal settings."""
    from transformers import BertTokenizerFast

    names = {"pad_token": "<pad>", "unk_token": "<unk>", "sep_token": "</s>", "cls_token": "<s>"}
    settings = {
        "defaults": {},
        "cased": {"do_lower_case": False, "strip_accents": False},
        "accents": {"do_lower_case": True, "strip_accents": False},
        "characters": {"tokenize_chinese_chars": False},
        "names": names,
    }[request.param]
    special = [*names.values()] if request.param == "names" else SPECIAL_TOKENS[:4]
    words = {word for text in LANGUAGES for word in re.findall(r"\w+|\W", text)}
    pieces = {f"##{letter}" for word in words for letter in word}
    lower = {word.lower() for word in words} | {"schoner", "cafe", "uber"}
    vocabulary = [*special, "[MASK]", *sorted({*words, *lower, *pieces, *"狗人東京在"} - {" ", ""})]
    folder, saved = tmp_path / "folder", tmp_path / "saved"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = BertTokenizerFast.from_pretrained(str(folder))
    theirs.save_pretrained(str(saved))
    (saved / "vocab.txt").unlink(missing_ok=True)
    return folder, saved, theirs


def test_settings_of_a_folder_are_those_of_transformers(folders):
    folder, saved, theirs = folders
    for source in (str(folder), str(folder / "vocab.txt"), str(saved)):
        ours = CaptionTokenizer(source)
        again = CaptionTokenizer(ours.files)  # as a checkpoint has them
        for text in LANGUAGES:
            ids = theirs(text, add_special_tokens=False)["input_ids"]
            assert ours.ids(text) == again.ids(text) == ids, (source, text)
        names = (theirs.pad_token_id, theirs.unk_token_id, theirs.sep_token_id)
        assert (ours.pad, ours.unknown, ours.end) == names
        assert ours.start == len(theirs.get_vocab())
        text = ours.decode(torch.tensor([ours.end, *ours.ids(LANGUAGES[1]), ours.pad]))
        assert text == theirs.decode(theirs(LANGUAGES[1], add_special_tokens=False)["input_ids"])


def test_tokens_that_a_user_added_are_those_of_transformers(folders):
    """A word before the vocabulary's pieces, and a special token, which captions do not show."""
    from transformers import BertTokenizerFast

    _, saved, theirs = folders
    theirs.add_tokens(["zweihundert"])
    theirs.add_special_tokens({"additional_special_tokens": ["<photo>"]})
    theirs.save_pretrained(str(saved))
    theirs, ours = BertTokenizerFast.from_pretrained(str(saved)), CaptionTokenizer(str(saved))
    ids = theirs("zweihundert <photo> a", add_special_tokens=False)["input_ids"]
    assert ours.ids("zweihundert <photo> a") == ids and len(ids) == 3
    assert ours.decode(torch.tensor(ids)) == "zweihundert a" and len(ours) == len(theirs) + 2


@pytest.mark.parametrize("place", ["added_tokens.json", "additional_special_tokens"])
def test_tokens_that_a_user_added_beside_a_vocabulary_are_those_of_transformers(folders, place):
    """Beside vocab.txt, as versions of transformers before tokenizer.json have them."""
    from transformers import BertTokenizerFast

    folder, _, theirs = folders
    path = folder / "tokenizer_config.json"
    settings = {**json.loads(path.read_text()), "unk_token": {"content": theirs.unk_token}}
    settings["unk_token"].update(__type="AddedToken", lstrip=False, rstrip=False)
    settings["unk_token"].update(normalized=True, single_word=False)
    if place == "added_tokens.json":
        (folder / place).write_text(json.dumps({"<photo>": len(theirs)}))
    else:
        settings[place] = ["<photo>"]
    path.write_text(json.dumps(settings))
    theirs = BertTokenizerFast.from_pretrained(str(folder))
    for source in (folder, folder / "vocab.txt"):
        ours = CaptionTokenizer(str(source))
        text = "Ein <photo> Hund"
        assert ours.ids(text) == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.bert.token_to_id("<photo>") in ours.ids(text)


def test_captions_are_written_as_their_readers_expect(make_captioner, tmp_path):
    """transformers would write a space between any two Chinese characters."""
    captions = (
        "一只狗在草地上奔跑，旁边有两个人。",  # noqa: RUF001
        "“狗”……红3只 cat",
        "東京タワーの前に、犬がいる",
        "한국 사람이 자전거를 탄다",
        "Ein schöner Hund, der über die Straße läuft",
    )
    letters = {letter for text in captions for letter in text} - {" "}
    words = [*SPECIAL_TOKENS, *sorted(letters), *(f"##{letter}" for letter in sorted(letters))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    captioner = make_captioner(tokenizer=str(tmp_path), prompt="")
    for text in captions:
        assert captioner.caption_text(captioner.tokenizer.encode_prompt(text)) == text


def test_a_name_is_looked_up_on_the_hub(monkeypatch, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    found = {"some-bert": str(tmp_path)}
    monkeypatch.setattr("BLIP.tokenizer.snapshot_download", lambda name, **_: found[name])
    ids = CaptionTokenizer("some-bert").encode(["cat Cat"], max_length=10)
    assert ids.tolist() == [[6, 5, 1, 3]]


def test_a_file_that_is_no_vocabulary_is_one_line(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\nword\n")
    with raises_line(ValueError, "is not a BERT vocabulary: sep_token not found"):
        CaptionTokenizer(str(tmp_path))
    for source in (str(tmp_path / "absent"), "bert-base-uncased-that-is-nowhere"):
        with raises_line(ValueError, "it is no folder with vocab.txt or tokenizer.json"):
            CaptionTokenizer(source)


@pytest.mark.parametrize("word", ["man", "[SEP]", ""])
def test_a_vocabulary_with_a_word_twice_is_one_line(tmp_path, word):
    """[DEC] would silently get the id of another word."""
    path = tmp_path / "vocab.txt"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "", "dog"]
    path.write_text("\n".join(words) + "\n")
    assert CaptionTokenizer(str(path)).start == 9
    path.write_text("\n".join([*words, word]) + "\n")
    with raises_line(ValueError, "is not a BERT vocabulary", f"it has {word!r} on 2 lines"):
        CaptionTokenizer(str(path))


CAPTIONS = [["a red ball on a box"], ["small dog"], ["the cat"]]


@pytest.fixture
def pieces(vocabulary, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text(vocabulary.read_text() + "##a\n##the\n")
    return str(path)


def test_input_and_label_of_the_first_word_become_its_piece(make_captioner, pieces):
    seen = []
    plain = make_captioner(tokenizer=pieces)
    shifted = make_captioner(tokenizer=pieces, first_token_shift=True)
    shifted.load_state_dict(plain.state_dict())
    embeddings = shifted.text_decoder.bert["embeddings"]
    embeddings.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    image = torch.randn(3, 3, 48, 48)
    logits, labels = shifted.predictions(image, CAPTIONS)
    _, unshifted = plain.predictions(image, CAPTIONS)
    words = [plain.tokenizer.token(number) for number in labels[:, 0].tolist()]
    assert words == ["##a", "small", "##the"]  # small has no piece
    assert torch.equal(labels[:, 1:], unshifted[:, 1:])  # the later "a", too
    start = len(shifted.prompt_ids)
    assert torch.equal(seen[0][:, start], labels[:, 0])
    # The piece is read at its place: an embedding that differs changes what follows.
    assert not torch.allclose(logits[0, 1:], plain.predictions(image, CAPTIONS)[0][0, 1:])
    expected = shifted.text_decoder.objective(logits, labels).loss
    torch.testing.assert_close(shifted(image, CAPTIONS).loss, expected)


def test_generated_pieces_after_the_prompt_are_read_as_a_word(make_captioner, pieces):
    captioner = make_captioner(tokenizer=pieces, first_token_shift=True)
    head = captioner.text_decoder.cls["predictions"]
    piece = captioner.tokenizer.bert.token_to_id("##a")
    with torch.no_grad():
        head.bias[piece] = 1e4
    length = len(captioner.prompt_ids) + 3
    settings = DecodingSettings(num_beams=1, max_length=length, min_length=1)
    assert captioner.generate(torch.randn(1, 3, 48, 48), settings) == ["aaa"]


def test_a_vocabulary_without_pieces_is_refused(make_captioner, tmp_path, vocabulary):
    path = tmp_path / "vocab.txt"
    path.write_text(vocabulary.read_text().replace("##s\n", ""))
    with pytest.raises(ValueError, match="first_token_shift: no word of the vocabulary"):
        make_captioner(tokenizer=str(path), first_token_shift=True)


@pytest.fixture
def checkpoint(make_captioner, pieces, tmp_path):
    captioner = make_captioner(tokenizer=pieces, first_token_shift=True, prompt="picture of the ")
    config = {"tokenizer": pieces, "prompt": "picture of the ", "first_token_shift": True}
    path = tmp_path / "run.pth"
    config = {**settings_of(hf_config(captioner)), **config}
    torch.save({"model": captioner.state_dict(), "config": config}, path)
    return captioner, str(path)


def test_a_captioner_with_a_shifted_first_token_is_not_converted_to_transformers(
    checkpoint, tmp_path
):
    captioner, path = checkpoint
    with pytest.raises(CheckpointError, match="trained with first_token_shift"):
        save_hf(captioner, tmp_path / "hf")
    command = ["BLIP.convert", "to-hf", path, tmp_path / "hf"]
    refused(*command, part="error: the captioner was trained with")
    assert not (tmp_path / "hf").exists()


def test_a_checkpoint_is_exported_with_its_own_prompt_and_shift(checkpoint):
    captioner = captioner_of(checkpoint[1])
    assert captioner.prompt == "picture of the " and len(captioner.prompt_ids) == 4
    assert captioner.shift is not None
