"""Annotation files that are refused in one line."""

import json

import pytest

from captioning.data import read_annotations
from captioning.data.formats import FORMATS
from captioning.runtime.errors import UserError

ROW = {"image": "x.jpg", "caption": "a dog"}
LIST = json.dumps([ROW, {"image": "y.jpg", "caption": "a cat"}])
CUT_OFF = "not valid JSON at line {} (Unterminated string starting at): correct it"
NO_IMAGE = "row 1 has no image: give the path of the image file"
NO_TEXT = "row 1 has a caption that is not text: expected a string or strings"
UNKNOWN = f"not an annotation file: expected {FORMATS}"
# content (text, or rows of a.json), what is said of it, the file's name
BAD = {
    "white space": (" \n\n", "the file is empty: download or write it again"),
    "empty list": ([], "no samples: check that this is the right file"),
    "cut off": (LIST[:-8], CUT_OFF.format(1)),
    "JSONL cut off": (
        json.dumps(ROW) + '\n\n{"image": "y.jpg", "cap',
        CUT_OFF.format(3),
        "a.jsonl",
    ),
    "CSV cut off": (
        'image,caption\nx.jpg,"a dog\ny.jpg,a cat\n',
        "not valid CSV at line 3: unexpected end of data",
        "a.csv",
    ),
    "JSON named JSONL": (
        LIST,
        "line 1 is not an object: expected {image, caption}",
        "a.jsonl",
    ),
    "a number": (3, UNKNOWN),
    "COCO results": ([{"image_id": 1, "caption": "a"}], NO_IMAGE),
    "COCO without captions": (
        {"images": [{"id": 1, "file_name": "x.jpg"}], "annotations": []},
        "row 1 of images: x.jpg has no caption: add one",
    ),
    "COCO without file names": (
        {"images": [{"id": 1}], "annotations": [{"image_id": 1, "caption": "a"}]},
        f"row 1 of images lacks id or file_name: expected {FORMATS}",
    ),
    "COCO's boxes": (
        {"images": [], "annotations": [{"image_id": 1, "bbox": [0, 0, 1, 1]}]},
        f"row 1 of annotations lacks image_id or caption: expected {FORMATS}",
    ),
    "COCO's captions of another file's images": (
        {"images": [], "annotations": [{"image_id": 1, "caption": "a"}]},
        "annotations has captions of image_id 1, which images does not have",
    ),
    "Karpathy's file without sentences": (
        {"images": [3]},
        f"row 1 of images lacks filename, split or sentences with raw: expected {FORMATS}",
    ),
    "Flickr's lines with one without its tab": (
        "x.jpg#0\ta dog\nx.jpg#1 a cat\n",
        "line 2 is not NAME#NUMBER, a tab and a caption: correct it",
        "a.token",
    ),
    "bars with a line that has none": (
        "image_name| comment_number| comment\nx.jpg| 0| a dog\nx.jpg 1 a cat\n",
        "line 3 is not NAME| NUMBER| caption: correct it",
        "results.csv",
    ),
    "commas outside of quotes": (
        "image,caption\nx.jpg,a dog, asleep\n",
        "line 2 has more values than line 1: put captions in double quotes",
        "captions.txt",
    ),
    "a text without a header": (
        "x.jpg a dog\n",
        "line 1 has no column caption and image: expected image,caption or image,caption,image_id",
        "captions.txt",
    ),
    "nested": ("[" * 100_000, "not valid JSON: it is nested too deeply"),
    "a key twice": (
        '[{"image": "x.jpg", "image": "y.jpg", "caption": "a"}]',
        "'image' occurs twice in an object: keep one",
    ),
    "a truth value for an id": (
        [{**ROW, "image_id": True}],
        "row 1 has image_id True: expected an integer or a string",
    ),
    "two ids": (
        [{**ROW, "image_id": 1}, {**ROW, "image_id": 2}],
        "row 2: x.jpg has image_id 2 here and 1 before: give an image one image_id",
    ),
    "one id for two, the second by its name": (
        [{**ROW, "image_id": 1}, {**ROW, "image": "b/01.jpg"}],
        "x.jpg and b/01.jpg have the same image id 1: give each image a different image_id",
    ),
    "no caption": ([{"image": "x.jpg"}], "row 1 has no caption: add caption or captions"),
    "blank captions": (
        [ROW, {"image": "y.jpg", "captions": ["", " \n"]}],
        "row 2: y.jpg has no caption: add one",
    ),
    "a caption of numbers": ([{"image": "x.jpg", "caption": [1]}], NO_TEXT),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_in_one_line(tmp_path, kind):
    content, message, *named = BAD[kind]
    name = named[0] if named else "a.json"
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError) as error:
        read_annotations(tmp_path / name)
    assert str(error.value) == f"{tmp_path / name}: {message}"


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "latin.json").write_bytes(b'[{"image": "x", "caption": "\xe9"}]')
    rows = {
        "latin.json": "not UTF-8 text at byte 28: convert it",
        "none.json": "no such file: put it there, or correct the path",
        "": "the folder has no photos and no metadata.jsonl",
    }
    for name, message in rows.items():
        with pytest.raises(UserError) as error:
            read_annotations(tmp_path / name)
        assert str(error.value).startswith(f"{tmp_path / name}: {message}")
