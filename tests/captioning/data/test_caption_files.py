"""Predictions and references in every format; bad files are in bad_input/test_predictions.py."""

import json

import pytest

from captioning.data.caption_files import (
    ids_by_name,
    match_ids,
    read_predictions,
    read_references,
    with_references,
)
from captioning.runtime.errors import UserError


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file, as JSON unless it is text, and gives its path."""

    def write_file(content):
        path = tmp_path / "file.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write_file


def test_predictions_keep_the_ids_of_the_file_also_after_a_byte_order_mark(write):
    entries = [{"image_id": 5, "caption": "a"}, {"image_id": "5", "caption": "", "score": 1.5}]
    assert read_predictions(write(entries)) == {5: "a", "5": ""}
    assert read_predictions(write("\ufeff" + json.dumps(entries[:1]))) == {5: "a"}


def test_lines_of_bulk_captioning_are_predictions(tmp_path):
    path = tmp_path / "captions.jsonl"
    lines = [{"image": "a/photo_7.jpg", "caption": "a"}, {"image_id": "x", "caption": "b"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert read_predictions(path) == {7: "a", "x": "b"}


def test_the_lines_of_bulk_captioning_have_the_ids_that_references_give_their_images(tmp_path):
    names = ["111_ab5.jpg", "222_cd5.jpg", "x.jpg"]  # Flickr8k's: 5 is not what they are called
    (tmp_path / "captions.txt").write_text(
        "image,caption\n" + "".join(f"{name},a dog\n" for name in names)
    )
    images = ["data/222_cd5.jpg", "data/x.jpg", "data/more_7.jpg"]
    lines = [{"image": image, "caption": "a cat"} for image in images]
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ids = ids_by_name(tmp_path / "captions.txt")
    found = read_predictions(tmp_path / "captions.jsonl", ids)
    assert list(found) == ["222_cd5.jpg", "x.jpg", 7]
    kept, lacking = with_references(found, read_references(tmp_path / "captions.txt"))
    assert list(kept) == ["222_cd5.jpg", "x.jpg"] and lacking == [7]


def test_references_give_ids_to_the_names_of_images(write):
    sentences = [{"raw": "a dog"}]
    photo = {"filename": "111_ab5.jpg", "imgid": 3, "sentences": sentences, "split": "test"}
    assert ids_by_name(write({"images": [photo]})) == {"111_ab5.jpg": 3}  # Karpathy's
    assert ids_by_name(write({"heron_42.jpg": ["a"]})) == {"heron_42.jpg": "heron_42.jpg"}
    rows = [{"file_name": "a.jpg", "id": 1}, {"file_name": ["a"], "id": 2}, {"id": 3}, "b.jpg"]
    captions = [{"image_id": 1, "caption": "a dog"}]
    assert ids_by_name(write({"images": rows, "annotations": captions})) == {"a.jpg": 1}


COCO = [(139, "a room"), (285, "a bear"), (139, " "), (139, "a table")]


@pytest.mark.parametrize(
    "document",
    [
        {"annotations": [{"image_id": image, "caption": text} for image, text in COCO]},
        [
            {"image": "val2014/COCO_val2014_000000000139.jpg", "caption": ["a room", "a table"]},
            {"image": "val2014/COCO_val2014_000000000285.jpg", "caption": "a bear"},
        ],
        {139: ["a room", "", "a table"], 285: ["a bear"]},
    ],
    ids=["COCO ground truth", "BLIP annotation", "lists"],
)
def test_each_form_of_references_gives_the_captions_that_are_not_empty(write, document):
    found = read_references(write(document))
    assert {int(i): texts for i, texts in found.items()} == {
        139: ["a room", "a table"],
        285: ["a bear"],
    }


def test_ids_match_as_text_where_they_are_unambiguous():
    references = {139: ["a"], 285: ["b"]}
    assert match_ids({"139": "x"}, references) == {"139": ["a"]}
    assert match_ids({139: "x"}, {"139": ["a"], "285": ["b"]}) == {139: ["a"]}
    both = {139: ["a"], "139": ["b"]}
    assert match_ids({139: "x", "139": "y"}, both) == both
    mixed = {285: "x", "139": "x"}
    assert match_ids(mixed, references) == {285: ["b"], "139": ["a"]}


@pytest.mark.parametrize("references", [{5: ["a"]}, {5: ["a"], 6: []}])
def test_predictions_without_references_are_refused_or_left_out(references):
    with pytest.raises(UserError, match="image_id 6 has a prediction but no reference captions"):
        match_ids({5: "a", 6: "b"}, references)
    assert with_references({5: "a", 6: "b", "7": "c"}, {**references, 7: ["c"]}) == (
        {5: "a", "7": "c"},
        [6],
    )
