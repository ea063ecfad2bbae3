"""Predictions and references in every format, and how they are matched."""

import json

import pytest

from captioning.data.caption_files import (
    ids_by_name,
    of_images,
    read_predictions,
    read_references,
    with_references,
)
from captioning.runtime.errors import UserError
from tests.programs import raises_line


def lines(*objects):
    return "".join(json.dumps(each) + "\n" for each in objects)


SCORED = {
    "results.json": [{"image_id": 7, "caption": "a"}, {"image_id": "x", "caption": ""}],
    "captions.jsonl": lines(  # our own
        {"image": "a/photo_7.jpg", "caption": "a", "captions": ["a", "c"]},
        {"image_id": "x", "captions": ["", "c"]},
    ),
    "capevalkit.jsonl": lines(
        {"id": 7, "caption": "a", "references": ["r"]}, {"id": "x", "caption": [""]}
    ),
    "captions.CSV": "caption,image_id\na,7\n,x\na,7\n",
}


@pytest.mark.parametrize("name", SCORED)
def test_predictions_have_the_ids_of_the_file(write, name):
    assert read_predictions(write(SCORED[name], name)) == {7: "a", "x": ""}


def test_a_folder_of_sidecars_is_predictions(tmp_path):
    for name, text in {"a.png": "a dog\na cat\n", "b_7.png": "a bus\n"}.items():
        (tmp_path / name).touch()
        (tmp_path / name).with_suffix(".txt").write_text(text)
    assert read_predictions(tmp_path) == {"a.png": "a dog", 7: "a bus"}


def test_lines_have_the_ids_that_references_give_their_images(write):
    names = ["111_ab5.jpg", "222_cd5.jpg", "x.jpg"]  # Flickr8k's: 5 is not what they are called
    references = write("image,caption\n" + "".join(f"./{n},a dog\n" for n in names), "captions.txt")
    images = ["data//222_cd5.jpg", "data/x.jpg", "data/more_7.jpg"]
    path = write(lines(*({"image": i, "caption": "a"} for i in images)), "a.jsonl")
    found = read_predictions(path, ids_by_name(references))
    kept, lacking = with_references(found, read_references(references))
    assert list(kept) == ["222_cd5.jpg", "x.jpg"] and lacking == [7]
    path = write(lines({"image": images[0], "caption": "a", "id": 1}), "a.jsonl")
    assert list(read_predictions(path, ids_by_name(references))) == ["222_cd5.jpg"]
    assert list(read_predictions(path)) == [1]


def test_references_give_ids_to_the_names_of_images(write):
    photo = {"filename": "111_ab5.jpg", "imgid": 3, "sentences": [{"raw": "a"}], "split": "test"}
    assert ids_by_name(write({"images": [photo]})) == {"111_ab5.jpg": 3}  # Karpathy's
    assert ids_by_name(write({"heron_42.jpg": ["a"]})) == {"heron_42.jpg": "heron_42.jpg"}
    images = [{"file_name": "a.jpg", "id": 1}, {"file_name": ["a"], "id": 2}, {"id": 3}]
    assert ids_by_name(write({"images": images, "annotations": []})) == {"a.jpg": 1}


ROOM, BEAR = ["a room", "a table"], ["a bear"]
PAIRS = [(139, "a room"), (285, "a bear"), (139, " "), (139, "a table"), (7, "")]
REFERENCES = {
    "gt.json": {"annotations": [{"image_id": i, "caption": text, "id": 9} for i, text in PAIRS]},
    "dict.json": {139: ["a room", "", "a table"], 285: BEAR, 7: []},
    "capevalkit.jsonl": lines(
        {"id": 139, "caption": "x", "references": ROOM}, {"id": 285, "references": BEAR}
    ),
    "a.TSV": "image_id\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in PAIRS),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_references_are_the_captions_that_are_not_empty(write, name):
    found = read_references(write(REFERENCES[name], name))
    assert {int(i): texts for i, texts in found.items()} == {139: ROOM, 285: BEAR}


def test_ids_match_as_text_where_they_are_unambiguous():
    references = {139: ["a"], 285: ["b"], "a.jpg": ["c"]}
    assert of_images(["139", "a.jpg#3"], references) == {"139": ["a"], "a.jpg#3": ["c"]}
    assert of_images([139], {"139": ["a"], "285": ["b"]}) == {139: ["a"]}
    both = {139: ["a"], "139": ["b"]}
    assert of_images(both, both) == both
    for references in ({5: ["a"], 7: ["c"]}, {5: ["a"], 6: [], 7: ["c"]}):
        kept, lacking = with_references({5: "a", 6: "b", "7": "c"}, references)
        assert (kept, lacking) == ({5: "a", "7": "c"}, [6])


SEVERAL = " has several captions, as references have: give one prediction per image"
TWO = [{"image_id": image_id, "caption": text} for image_id, text in ((5, "a"), ("5", "b"))]
BAD = [
    (read_predictions, [], "no predictions: nothing to score"),
    (read_predictions, {"5": "a man"}, "row 1 has no captions: expected text in a column"),
    (read_predictions, [{"caption": "a"}], "row 1 has no image_id (an integer or a string)"),
    (read_predictions, TWO, "row 2: image_id '5' occurs twice, with two captions: keep one of"),
    (read_predictions, [{"id": 1, "caption": ["a", "b"]}], f"row 1 (image_id 1){SEVERAL}"),
    (read_references, {"5": "a man"}, "no reference captions: check that this is the right file"),
    (read_references, [{"id": 1, "caption": " "}], "no reference captions: check that this"),
]


@pytest.mark.parametrize(("read", "content", "message"), BAD)
def test_what_cannot_be_scored_is_one_line(write, read, content, message):
    path = write(content)
    with raises_line(UserError, start=f"{path}: {message}"):
        read(path)


def test_cut_predictions_are_counted(write, capsys):
    path = write(
        [{"image_id": n, "caption": "a", "cut": cut} for n, cut in enumerate((True, False))]
    )
    read_predictions(path)
    assert f"{path}: 1 of 2 captions were cut at max_length" in capsys.readouterr().err
