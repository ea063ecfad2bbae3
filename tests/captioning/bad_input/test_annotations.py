"""Annotation files of every kind: read for what they say, or refused in one line."""

import json

import pytest

from baselines import Vocabulary
from BLIP.tokenizer import CaptionTokenizer
from captioning.data import preprocess_caption, read_annotations
from captioning.data.formats import FORMATS
from captioning.runtime.errors import UserError

ROW = {"image": "x.jpg", "caption": "a dog"}
LIST = json.dumps([ROW, {"image": "y.jpg", "caption": "a cat"}])

# file name, content, what is said of it
BAD = {
    "white space": ("a.json", " \n\n", "the file is empty: download or write it again"),
    "empty list": ("a.json", "[]", "no samples: check that this is the right file"),
    "cut off": (
        "a.json",
        LIST[:-8],
        "not valid JSON at line 1 (Unterminated string starting at): correct it",
    ),
    "JSONL cut off": (
        "a.jsonl",
        json.dumps(ROW) + '\n\n{"image": "y.jpg", "cap',
        "not valid JSON at line 3 (Unterminated string starting at): correct it",
    ),
    "CSV cut off": (
        "a.csv",
        'image,caption\nx.jpg,"a dog\ny.jpg,a cat\n',
        "not valid CSV at line 3: unexpected end of data",
    ),
    "JSON named JSONL": ("a.jsonl", LIST, "line 1 is not an object: expected {image, caption}"),
    "a number": ("a.json", "3", f"not an annotation file: expected {FORMATS}"),
    "COCO results": (
        "a.json",
        '[{"image_id": 1, "caption": "a"}]',
        "row 1 has no image: give the path of the image file",
    ),
    "a number for an image": (
        "a.json",
        '[{"image": 5, "caption": "a"}]',
        "row 1 has no image: give the path of the image file",
    ),
    "an image without a name": (
        "a.json",
        '[{"image": "", "caption": "a"}]',
        "row 1 has no image: give the path of the image file",
    ),
    "COCO without captions": (
        "a.json",
        '{"images": [{"id": 1, "file_name": "x.jpg"}], "annotations": []}',
        "row 1 of images: x.jpg has no caption: add one",
    ),
    "COCO without file names": (
        "a.json",
        '{"images": [{"id": 1}], "annotations": [{"image_id": 1, "caption": "a"}]}',
        f"row 1 of images lacks id or file_name: expected {FORMATS}",
    ),
    "COCO's boxes": (
        "a.json",
        '{"images": [], "annotations": [{"image_id": 1, "bbox": [0, 0, 1, 1]}]}',
        f"row 1 of annotations lacks image_id or caption: expected {FORMATS}",
    ),
    "COCO's captions of another file's images": (
        "a.json",
        '{"images": [], "annotations": [{"image_id": 1, "caption": "a"}]}',
        "annotations has captions of image_id 1, which images does not have",
    ),
    "Karpathy's file without sentences": (
        "a.json",
        '{"images": [3]}',
        f"row 1 of images lacks filename, split or sentences with raw: expected {FORMATS}",
    ),
    "Flickr's lines with one without its tab": (
        "a.token",
        "x.jpg#0\ta dog\nx.jpg#1 a cat\n",
        "line 2 is not NAME#NUMBER, a tab and a caption: correct it",
    ),
    "bars with a line that has none": (
        "results.csv",
        "image_name| comment_number| comment\nx.jpg| 0| a dog\nx.jpg 1 a cat\n",
        "line 3 is not NAME| NUMBER| caption: correct it",
    ),
    "commas outside of quotes": (
        "captions.txt",
        "image,caption\nx.jpg,a dog, asleep\n",
        "line 2 has more values than line 1: put captions in double quotes",
    ),
    "a text without a header": (
        "captions.txt",
        "x.jpg a dog\n",
        "line 1 has no column caption and image: expected image,caption or image,caption,image_id",
    ),
    "COCO without images": (
        "a.json",
        '{"annotations": []}',
        f"not an annotation file: expected {FORMATS}",
    ),
    "nested": ("a.json", "[" * 100_000, "not valid JSON: it is nested too deeply"),
    "a key twice": (
        "a.json",
        '[{"image": "x.jpg", "image": "y.jpg", "caption": "a"}]',
        "'image' occurs twice in an object: keep one",
    ),
    "a truth value for an id": (
        "a.json",
        '[{"image": "x.jpg", "caption": "a", "image_id": true}]',
        "row 1 has image_id True: expected an integer or a string",
    ),
    "two ids": (
        "a.json",
        json.dumps([{**ROW, "image_id": 1}, {**ROW, "image_id": 2}]),
        "row 2: x.jpg has image_id 2 here and 1 before: give an image one image_id",
    ),
    "one id for two, the second by its name": (
        "a.json",
        json.dumps([{**ROW, "image_id": 1}, {**ROW, "image": "b/01.jpg"}]),
        "x.jpg and b/01.jpg have the same image id 1: give each image a different image_id",
    ),
    "no caption": (
        "a.json",
        '[{"image": "x.jpg"}]',
        "row 1 has no caption: add caption or captions",
    ),
    "blank captions": (
        "a.json",
        json.dumps([ROW, {"image": "y.jpg", "captions": ["", " \n"]}]),
        "row 2: y.jpg has no caption: add one",
    ),
    "a caption of numbers": (
        "a.json",
        '[{"image": "x.jpg", "caption": [1]}]',
        "row 1 has a caption that is not text: expected a string or strings",
    ),
    "a number for a caption": (
        "a.json",
        '[{"image": "x.jpg", "caption": 3}]',
        "row 1 has a caption that is not text: expected a string or strings",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_in_one_line(tmp_path, kind):
    name, content, message = BAD[kind]
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as error:
        read_annotations(tmp_path / name)
    assert str(error.value) == f"{tmp_path / name}: {message}"


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "latin.json").write_bytes(b'[{"image": "x", "caption": "\xe9"}]')
    rows = {
        "latin.json": "not UTF-8 text at byte 28: convert it",
        "none.json": "no such file: put it there, or correct the path",
    }
    for name, message in rows.items():
        with pytest.raises(UserError) as error:
            read_annotations(tmp_path / name)
        assert str(error.value) == f"{tmp_path / name}: {message}"


# caption, and what training makes of it
CAPTIONS = {
    "10,000 words": ("A dog! " * 10_000, " ".join(["a", "dog"] * 15)),
    "one word of 100,000 letters": ("d" * 100_000, "d" * 100_000),
    "emoji": ("A dog 😀👩‍👩‍👧 runs", "a dog 😀👩‍👩‍👧 runs"),
    "punctuation alone": ("...!!!", ""),
    "control characters": ("a\0dog\x07", "a\0dog\x07"),
    "half a surrogate pair": ("a \ud83d dog", "a \ud83d dog"),
    "10,000 accents": ("e" + "\u0301" * 10_000, "e" + "\u0301" * 10_000),
}


@pytest.mark.parametrize("kind", CAPTIONS)
def test_an_odd_caption_is_read_and_becomes_tokens(tmp_path, kind, vocabulary):
    caption, expected = CAPTIONS[kind]
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"image": "x.jpg", "captions": [caption, " "]}]))
    (sample,) = read_annotations(path)
    assert sample.captions == (caption,)
    text = preprocess_caption(caption)
    assert text == expected
    for tokenizer in (CaptionTokenizer(str(vocabulary)), Vocabulary(["a", "dog"])):
        ids, mask = tokenizer.encode([text, "a dog"], 12)
        assert ids.shape == mask.shape and ids.size(1) <= 12
        assert ids.min() >= 0 and ids.max() < len(tokenizer)
        assert tokenizer.end in ids[0].tolist() and 1 <= mask[0].sum() <= 12
