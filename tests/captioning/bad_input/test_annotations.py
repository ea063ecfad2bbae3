"""Annotation files that are refused in one line."""

import json

import pytest

from captioning.data import read_annotations
from captioning.data.formats import FORMATS
from captioning.runtime.errors import UserError
from tests.programs import raises_line

ROW = {"image": "x.jpg", "caption": "a dog"}
LIST = json.dumps([ROW, {"image": "y.jpg", "caption": "a cat"}])
COCO = {"images": [{"id": 1, "file_name": "x.jpg"}]}
COCO["annotations"] = [{"image_id": 1, "caption": "a"}]
CUT_OFF = "not valid JSON at line {} (Unterminated string starting at): correct it"
TWICE = '[{"image": "x.jpg", "image": "y.jpg", "caption": "a"}]'
# content (text, or rows of a.json), what is said of it, the file's name
BAD = [
    (" \n\n", "the file is empty: download or write it again"),
    ([], "no samples: check that this is the right file"),
    (LIST[:-8], CUT_OFF.format(1)),
    (json.dumps(ROW) + '\n\n{"image": "y.jpg", "cap', CUT_OFF.format(3), "a.jsonl"),
    ('image,caption\nx.jpg,"a dog\ny.jpg,a cat\n', "not valid CSV at line 3: unexpected", "a.csv"),
    (LIST, "line 1 is not an object: expected {image, caption}", "a.jsonl"),
    (3, f"not an annotation file: expected {FORMATS}"),
    ([{"image_id": 1, "caption": "a"}], "row 1 has no image: give the path of the image file"),
    ({**COCO, "images": [{"id": 1}]}, f"row 1 of images lacks id or file_name: expected {FORMATS}"),
    ({**COCO, "annotations": [{"id": 1}]}, "row 1 of annotations lacks image_id or caption: expec"),
    ({**COCO, "annotations": []}, "row 1 of images: x.jpg has no caption: add one"),
    ({**COCO, "images": []}, "annotations has captions of image_id 1, which images does not have"),
    ({"images": [3]}, "row 1 of images lacks filename, split or sentences with raw: expected a"),
    ("x.jpg#0\ta\nx.jpg#1 a\n", "line 2 is not NAME#NUMBER, a tab and a caption", "a.token"),
    (
        "image_name| \nx.jpg| 0| a\nx.jpg 1 a\n",
        "line 3 is not NAME| NUMBER| caption",
        "results.csv",
    ),
    ("image,caption\nx.jpg,a dog, asleep\n", "line 2 has more values than line 1: put", "a.txt"),
    ("x.jpg a dog\n", "line 1 has no column caption and image: expected image,caption or", "a.txt"),
    ("[" * 100_000, "not valid JSON: it is nested too deeply"),
    (TWICE, "'image' occurs twice in an object: keep one"),
    ([{**ROW, "image_id": True}], "row 1 has image_id True: expected an integer or a string"),
    ([{**ROW, "image_id": i} for i in (1, 2)], "row 2: x.jpg has image_id 2 here and 1 before: "),
    ([{**ROW, "image_id": 1}, {**ROW, "image": "b/01.jpg"}], "x.jpg and b/01.jpg have the same im"),
    ([{**ROW, "prompt": p} for p in ("a", "b")], "row 2: x.jpg has the prompt 'b' here and 'a' be"),
    ([{"image": "x.jpg"}], "row 1 has no caption: add caption or captions"),
    ([ROW, {"image": "y.jpg", "captions": ["", " \n"]}], "row 2: y.jpg has no caption: add one"),
    (
        [{"image": "x.jpg", "caption": [1]}],
        "row 1 has a caption that is not text: expected a string",
    ),
]


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_one_line(tmp_path, case):
    content, message, *named = case
    path = tmp_path / (named[0] if named else "a.json")
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with raises_line(UserError, start=f"{path}: {message}"):
        read_annotations(path)


def test_a_file_that_is_not_text_or_not_there_is_named_and_so_is_an_empty_folder(tmp_path):
    (tmp_path / "latin.json").write_bytes(b'[{"image": "x", "caption": "\xe9"}]')
    rows = {
        "latin.json": "not UTF-8 text at byte 28: convert it",
        "none.json": "no such file: put it there, or correct the path",
        "": "the folder has no photos and no metadata.jsonl",
    }
    for name, message in rows.items():
        with raises_line(UserError, start=f"{tmp_path / name}: {message}"):
            read_annotations(tmp_path / name)
